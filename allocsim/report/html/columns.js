"use strict";
// Columns: differences of neighbours, packed by allocsim/report/html/embedding.py.

const TYPES = { int8: Int8Array, int16: Int16Array, int32: Int32Array, float64: Float64Array };

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function unpacked(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

function columnsOf(index, buffer) {
  const columns = {};
  for (const [name, [type, length, offset]] of Object.entries(index)) {
    const changes = new TYPES[type](buffer, offset, length);
    const values = new Float64Array(length);
    let value = 0;
    for (let i = 0; i < length; i++) values[i] = value += changes[i];
    columns[name] = values;
  }
  return columns;
}
