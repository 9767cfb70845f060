// Data of a device's page: the columns of html/embedding.py, with allocations and frees joined.

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
    category: columns["block.category"],
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
