// Finds the text of a page whose contrast with its background is below that of WCAG 2.2, level AA (1.4.3): 4.5, or 3.0 for
// large text. Evaluates to the number of texts, and a description of each that is too faint.
(() => {
  // Returns a colour as red, green, blue (0 to 255) and opacity (0 to 1).
  const parse = text => {
    const parts = (/^(?:rgba?|color)\((.*)\)$/.exec(text) || [])[1];
    if (parts === undefined) throw new Error("unknown colour: " + text);
    const isShare = parts.startsWith("srgb ");
    const numbers = parts.replace("srgb ", "").split(/[\s,/]+/).map(Number);
    if (numbers.some(Number.isNaN)) throw new Error("unknown colour: " + text);
    const [red, green, blue, alpha = 1] = numbers;
    return [...[red, green, blue].map(it => isShare ? 255 * it : it), alpha];
  };
  // Returns the colour of `top` drawn over `under`.
  const over = (top, under) => {
    const alpha = top[3] + under[3] * (1 - top[3]);
    if (alpha === 0) return [0, 0, 0, 0];
    return [0, 1, 2].map(it => (top[it] * top[3] + under[it] * under[3] * (1 - top[3])) / alpha).concat(alpha);
  };
  const faded = (colour, opacity) => [...colour.slice(0, 3), colour[3] * opacity];
  const luminance = colour => {
    const [red, green, blue] = colour.slice(0, 3).map(it => it / 255)
      .map(it => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const opacityUpTo = (element, end) => {
    let opacity = 1;
    for (let it = element; it && it !== end; it = it.parentElement) opacity *= Number(getComputedStyle(it).opacity);
    return opacity;
  };

  // Draws the colours of a text and of its background over those of the elements around it, up to the page's own.
  const onPage = (element, text, under) => {
    let [shown, ground] = [text, under];
    for (let it = element; it; it = it.parentElement) {
      const style = getComputedStyle(it);
      const own = parse(style.backgroundColor), opacity = Number(style.opacity);
      shown = faded(over(shown, own), opacity);
      ground = faded(over(ground, own), opacity);
    }
    const isDark = getComputedStyle(document.documentElement).colorScheme.includes("dark") &&
      matchMedia("(prefers-color-scheme: dark)").matches;
    const canvas = isDark ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return [over(shown, canvas), over(ground, canvas)];
  };

  // Returns what the shapes of a figure that were drawn before a text show in its middle.
  const groundInFigure = (text, svg) => {
    const box = text.getBoundingClientRect();
    const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2);
    let ground = [0, 0, 0, 0];
    for (const shape of svg.querySelectorAll("rect, path, circle, ellipse, polygon")) {
      if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) break;
      const style = getComputedStyle(shape);
      const place = shape.getScreenCTM();
      if (style.fill === "none" || style.fill.startsWith("url(") || style.visibility !== "visible" || !place) continue;
      if (!shape.isPointInFill(middle.matrixTransform(place.inverse()))) continue;
      ground = over(faded(parse(style.fill), Number(style.fillOpacity) * opacityUpTo(shape, svg)), ground);
    }
    return ground;
  };

  const found = [];
  const judge = (element, words, colour, ground, start, size, weight) => {
    const [shown, under] = onPage(start, colour, ground);
    const wanted = size >= 24 || size >= 18.66 && weight >= 700 ? 3 : 4.5;
    const ratio = contrast(shown, under);
    if (ratio >= wanted) return;
    const hex = it => "#" + it.slice(0, 3).map(part => Math.round(part).toString(16).padStart(2, "0")).join("");
    const kind = element.getAttribute("class");
    found.push(`${element.localName}${kind ? "." + kind : ""} "${words.slice(0, 60)}": ${hex(shown)} on ${hex(under)}, ${ratio.toFixed(2)}`);
  };

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const words = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!words || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    if (![...range.getClientRects()].some(it => it.width > 0 && it.height > 0)) continue;
    seen += 1;
    const style = getComputedStyle(element), svg = element.closest("svg");
    const size = parseFloat(style.fontSize), weight = Number(style.fontWeight);
    if (svg) {
      const text = element.closest("text") || element, place = text.getScreenCTM();
      const ground = groundInFigure(text, svg);
      const colour = faded(parse(style.fill), Number(style.fillOpacity) * opacityUpTo(element, svg));
      judge(element, words, over(colour, ground), ground, svg, size * Math.hypot(place.a, place.b), weight);
    } else {
      judge(element, words, parse(style.color), [0, 0, 0, 0], element, size, weight);
    }
  }
  // The texts inside of controls are no nodes of the page.
  for (const control of document.querySelectorAll("input, select, textarea")) {
    if (!control.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (["checkbox", "radio", "range", "color", "file"].includes(control.type)) continue;
    const isHint = !control.value && Boolean(control.placeholder);
    const style = getComputedStyle(control, isHint ? "::placeholder" : null);
    seen += 1;
    judge(control, control.value || control.placeholder || "", faded(parse(style.color), isHint ? Number(style.opacity) : 1),
      [0, 0, 0, 0], control, parseFloat(style.fontSize), Number(style.fontWeight));
  }
  return { seen, found: [...new Set(found)] };
})()
