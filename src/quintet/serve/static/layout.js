// Justified rows: every row is as wide as the list, and none has a lone leftover.

const GAP = 6;
const [NARROWEST, WIDEST] = [0.55, 2.6]; // of a shape; what is beyond is cropped

/** Of an item's photo: width by height. */
export function ratioOf({ metadata: { width, height } }) {
  const ratio = width > 0 && height > 0 ? width / height : 1;
  return Math.min(Math.max(ratio, NARROWEST), WIDEST);
}

/**
 * The numbers of items in each row, so that the heights of rows are as near to `target` as they can be: the cheapest of
 * all ways to break the list, from its end.
 */
export function breakRows(ratios, width, target) {
  const cost = [0];
  const from = [0];
  for (let end = 1; end <= ratios.length; end++) {
    cost[end] = Infinity;
    for (let start = end - 1, sum = 0; start >= 0; start--) {
      sum += ratios[start];
      const height = heightOf(sum, end - start, width);
      const price = cost[start] + Math.log(height / target) ** 2;
      if (price < cost[end]) [cost[end], from[end]] = [price, start];
      if (height < target / 2.5) break;
    }
  }
  const rows = [];
  for (let end = ratios.length; end > 0; end = from[end]) rows.unshift(end - from[end]);
  return rows;
}

function heightOf(sum, count, width) {
  return (width - GAP * (count - 1)) / sum;
}

/** Give the elements of a list the sizes of their rows. A row that would be far too high stays narrower. */
export function justify(elements, ratios, width) {
  const target = width < 500 ? 0.34 * width : Math.min(Math.max(width / 5.5, 170), 230);
  let at = 0;
  for (const count of breakRows(ratios, width, target)) {
    const row = ratios.slice(at, at + count);
    const height = Math.min(heightOf(row.reduce((a, b) => a + b), count, width), 1.7 * target);
    for (let number = at; number < at + count; number++) {
      elements[number].style.width = `${Math.floor(height * ratios[number] * 100) / 100}px`;
      elements[number].style.height = `${height.toFixed(2)}px`;
    }
    at += count;
  }
}
