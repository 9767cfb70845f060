"use strict";
// Columns: differences of neighbours, packed by allocsim/report/packed_columns.py.

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

async function readData(device) {
  const about = JSON.parse(document.getElementById(`about-${device}`).textContent);
  const element = document.getElementById(`columns-${device}`);
  const columns = columnsOf(about.columns, await unpacked(element.textContent.trim()));
  element.remove();
  const count = columns["block.born"].length;
  const blocks = {
    count, place: columns["block.place"], size: columns["block.size"],
    slack: columns["block.slack"], born: columns["block.born"],
    freed: new Float64Array(count), completed: new Float64Array(count),
    stream: columns["block.stream"], owner: columns["block.owner"],
    class: columns["block.class"], stack: columns["block.stack"],
  };
  for (let i = 0; i < count; i++) {
    blocks.freed[i] = blocks.born[i] + columns["block.lived"][i];
    blocks.completed[i] = blocks.freed[i] + columns["block.waited"][i];
  }
  const segments = {
    count: columns["segment.born"].length, place: columns["segment.place"],
    size: columns["segment.size"], born: columns["segment.born"],
    died: columns["segment.born"].map((born, i) => born + columns["segment.lived"][i]),
    group: columns["segment.group"],
  };
  return { ...about, device, columns, blocks, segments };
}
