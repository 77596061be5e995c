// Returns what is wrong with the layout of the page, a text each: the page scrolls sideways, an element or a text is outside
// of it, a text is cut off, two texts overlap, a text is hard to read. Boxes that scroll may have more than they show.
(() => {
  const problems = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) problems.push(`the page is ${document.documentElement.scrollWidth} wide, in ${width}`);

  const scrolls = (style) => /auto|scroll/.test(style.overflowX + style.overflowY);
  const clips = (style) => /hidden|clip/.test(style.overflowX + style.overflowY);
  const ancestors = (node) => {
    const all = [];
    for (let element = node.parentElement; element; element = element.parentElement) all.push(element);
    return all;
  };
  const describe = (text) => JSON.stringify(text.trim().slice(0, 60));

  for (const element of document.body.querySelectorAll('*')) {
    const box = element.getBoundingClientRect();
    const inScroll = ancestors(element).some((one) => scrolls(getComputedStyle(one)));
    if (box.width > 0 && !inScroll && (box.right > width + 1 || box.left < -1))
      problems.push(`outside: <${element.tagName.toLowerCase()} class="${element.className}"> from ${box.left} to ${box.right}`);
  }

  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const contrast = (element) => {
    const behind = [element, ...ancestors(element)].map((one) => numbers(getComputedStyle(one).backgroundColor))
      .find((colour) => colour.length < 4 || colour[3] > 0.5) || [255, 255, 255];
    const [light, dark] = [luminance(numbers(getComputedStyle(element).color)), luminance(behind)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };

  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || !node.parentElement.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    if (contrast(node.parentElement) < 4.5) problems.push(`contrast ${contrast(node.parentElement).toFixed(1)}: ${describe(node.data)}`);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      let shown = {left: box.left, right: box.right, top: box.top, bottom: box.bottom};
      for (const one of ancestors(node)) {
        const style = getComputedStyle(one), outer = one.getBoundingClientRect();
        // Letters are lower than their line's box.
        const isOutside = box.left < outer.left - 1 || box.right > outer.right + 1 || box.top < outer.top - 4 ||
          box.bottom > outer.bottom + 4;
        if (one !== document.body && one !== document.documentElement && clips(style) && isOutside && !scrolls(style))
          problems.push(`cut: ${describe(node.data)} by <${one.tagName.toLowerCase()} class="${one.className}">`);
        if (!scrolls(style)) continue;
        shown = {left: Math.max(shown.left, outer.left), right: Math.min(shown.right, outer.right),
                 top: Math.max(shown.top, outer.top), bottom: Math.min(shown.bottom, outer.bottom)};
      }
      // The head of a table stays where it is while its rows scroll below it.
      if (shown.right - shown.left > 1 && shown.bottom - shown.top > 1)
        lines.push({...shown, node, sticks: Boolean(node.parentElement.closest('thead'))});
    }
  }
  lines.sort((a, b) => a.top - b.top);
  lines.forEach((line, place) => {
    for (let next = place + 1; next < lines.length && lines[next].top < line.bottom - 3; ++next) {
      const other = lines[next];
      if (other.node === line.node || other.sticks !== line.sticks) continue;
      if (Math.min(line.right, other.right) - Math.max(line.left, other.left) > 1)
        problems.push(`overlap: ${describe(line.node.data)} and ${describe(other.node.data)}`);
    }
  });
  return problems;
})()
