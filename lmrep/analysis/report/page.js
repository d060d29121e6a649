"use strict";
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const namespace = $("#blank").namespaceURI;
  const color = (i) => `var(--r${i % 8})`;

  function svg(tag, attributes, parent, text) {
    const node = document.createElementNS(namespace, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  // Theme: chosen, or the system's.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = $("#theme");
  const applyTheme = () => {
    document.documentElement.dataset.theme = theme.value === "auto" ? (dark.matches ? "dark" : "light") : theme.value;
  };
  theme.addEventListener("change", applyTheme);
  dark.addEventListener("change", applyTheme);
  applyTheme();

  // Numbers
  function short(x, percent) {
    if (percent) return `${+(100 * x).toPrecision(3)}%`;
    const size = Math.abs(x);
    if (size >= 1e3) {
      const units = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];
      const unit = Math.min(units.length - 1, Math.floor(Math.log10(size) / 3));
      return `${+(x / 1000 ** unit).toPrecision(3)}${units[unit]}`;
    }
    return size && size < 1e-3 ? x.toExponential(1) : `${+x.toPrecision(3)}`;
  }

  function ticks(low, high, log, number) {
    if (log) {
      const values = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        for (const digit of Math.log10(high / low) > 2.2 ? [1] : [1, 2, 5]) {
          const value = digit * 10 ** power;
          if (value >= low * 0.999 && value <= high * 1.001) values.push(value);
        }
      }
      if (values.length > 1) return values;
    }
    const rough = (high - low) / number || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999);
    const values = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) values.push(i * step);
    return values;
  }

  // Curves: data-lines and data-baselines of a figure map runs to metrics. Figures have the same controls; those with
  // data-axis have that axis, logarithmic, and show validation alone. data-series of a figure are its lines. Runs of a
  // group differ in their seed alone: their validations are drawn as a mean and a band of a standard deviation.
  function lines(metrics, axis, logX, logY, splits) {
    const curves = [], groups = new Map();
    data.runs.forEach((run, i) => {
      for (const split of splits) {
        const x = run[split].step.length ? run[split][axis] : [], y = run[split][metrics[i]];
        if (!y || !x.length) continue;
        const points = [];
        y.forEach((value, j) => {
          if (value !== null && !(logX && x[j] <= 0) && !(logY && value <= 0)) points.push([x[j], value]);
        });
        const validation = split === "validation";
        const label = (data.runs.length > 1 ? `${run.label} ` : "") + (validation ? "validation " : "");
        if (!points.length) continue;
        const curve = { label, stroke: color(run.group), split: validation ? split : "train", points };
        if (validation) groups.set(run.group, [...(groups.get(run.group) ?? []), curve]);
        else curves.push(curve);
      }
    });
    return [...curves, ...[...groups.values()].flatMap((group) => (group.length > 1 ? band(group) : group))];
  }

  function band(curves) {
    const at = new Map();
    for (const curve of curves) for (const [x, y] of curve.points) at.set(x, [...(at.get(x) ?? []), y]);
    const points = [], low = [], high = [];
    for (const [x, values] of [...at].filter(([, values]) => values.length === curves.length).sort((a, b) => a[0] - b[0])) {
      const mean = values.reduce((sum, value) => sum + value) / values.length;
      const deviation = Math.sqrt(values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / (values.length - 1));
      points.push([x, mean]);
      low.push([x, mean - deviation]);
      high.push([x, mean + deviation]);
    }
    // Seeds that were validated at other places, such as other numbers of tokens, have curves of their own.
    const same = points.length === Math.max(...curves.map((curve) => curve.points.length));
    return same ? [{ ...curves[0], label: `mean of ${curves.length} seeds `, points, low, high }] : curves;
  }

  function series(text, logX) {
    return JSON.parse(text).map(([label, stroke, points]) => ({ label: label && `${label} `, stroke,
      split: "validation", points: points.filter(([x]) => !logX || x > 0) })).filter((line) => line.points.length);
  }

  function draw(figure) {
    const fixed = figure.dataset.series, percent = "percent" in figure.dataset, plot = $(".plot", figure);
    const fixedAxis = figure.dataset.axis, axis = fixedAxis || $("input[name=axis]:checked").value;
    const logX = fixed ? $("#logsteps").checked : fixedAxis ? true : $("#logx").checked;
    const logY = !fixed && $("#logy").checked && !percent;
    const named = { step: "steps", tokens: "tokens", flop: "floating-point operations" }[axis];
    const splits = fixedAxis ? ["validation"] : ["train", "timing", "validation"];
    const shown = fixed ? series(fixed, logX) : lines(JSON.parse(figure.dataset.lines), axis, logX, logY, splits);
    const width = Math.max(260, plot.clientWidth), height = Math.round(Math.min(260, width * 0.62));
    const [left, right, top, bottom] = [46, 12, 10, 34];
    plot.textContent = "";
    $("button", figure)?.remove();
    if (!shown.length) { plot.textContent = `Not known by ${named}.`; return; }
    if (shown.every((line) => line.points.length < 2)) { // nothing to draw
      plot.textContent = shown.map(({ label, points: [[x, y]] }) => `${label}${short(y, percent)} at ${short(x)} ${named}`)
        .join(" · ");
      return;
    }
    const base = fixed ? [] : lines(JSON.parse(figure.dataset.baselines), axis, logX, logY, ["validation"]);
    const all = [...shown, ...base].flatMap((line) => [...line.points, ...(line.low ?? []), ...(line.high ?? [])])
      .filter(([, y]) => !logY || y > 0);
    const span = (values, log) => {
      let low = Infinity, high = -Infinity;
      for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
      if (!log && (percent || figure.dataset.metric === "tokens_per_second")) low = Math.min(low, 0);
      if (low === high) { low = log ? low / 2 : low - 0.5; high = log ? high * 2 : high + 0.5; }
      return [low, high];
    };
    let x0 = logX ? Infinity : 0, x1 = -Infinity;
    for (const [x] of all) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); }
    if (x0 >= x1) x1 = logX ? x0 * 2 : x0 + 1;
    const [y0, y1] = span(all.map((point) => point[1]), logY);
    const scale = (low, high, from, to, log) => log
      ? (v) => from + (Math.log(v / low) / Math.log(high / low)) * (to - from)
      : (v) => from + ((v - low) / (high - low)) * (to - from);
    const sx = scale(x0, x1, left, width - right, logX), sy = scale(y0, y1, height - bottom, top, logY);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${$("h3", figure).textContent} over ${named}` }, plot);
    for (const y of ticks(y0, y1, logY, 5)) {
      svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(y), y2: sy(y) }, root);
      svg("text", { x: left - 6, y: sy(y) + 4, "text-anchor": "end" }, root, short(y, percent));
    }
    let drawn = -Infinity;
    for (const x of ticks(x0, x1, logX, Math.max(3, width / 90))) {
      if (sx(x) - drawn < 38) continue;
      drawn = sx(x);
      svg("text", { x: sx(x), y: height - bottom + 16, "text-anchor": "middle" }, root, short(x));
    }
    svg("text", { x: width - right, y: height - 4, "text-anchor": "end", class: "axis" }, root, named);
    const point = ([x, y], i) => `${i ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`;
    const path = (points) => points.map(point).join("");
    for (const line of base) svg("path", { class: "base", d: path(line.points) }, root);
    for (const line of shown) {
      if (line.low?.every(([, y]) => !logY || y > 0)) {
        svg("path", { class: "band", d: path([...line.high, ...line.low.toReversed()]), style: `fill:${line.stroke}` }, root);
      }
      svg("path", { class: line.split, d: path(line.points), style: `stroke:${line.stroke}` }, root);
      if (line.split === "validation" && line.points.length < 60) {
        for (const [x, y] of line.points) {
          svg("circle", { cx: sx(x), cy: sy(y), r: 2.6, style: `fill:${line.stroke}` }, root);
        }
      }
    }
    const cursor = svg("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" }, root);
    const output = $("output", figure);
    root.addEventListener("pointermove", (event) => {
      const at = ((event.clientX - root.getBoundingClientRect().left) / root.getBoundingClientRect().width) * width;
      const parts = [];
      let mark = null;
      for (const line of shown) {
        let best = line.points[0];
        for (const point of line.points) if (Math.abs(sx(point[0]) - at) < Math.abs(sx(best[0]) - at)) best = point;
        if (mark === null || Math.abs(sx(best[0]) - at) < Math.abs(sx(mark) - at)) mark = best[0];
        parts.push(`${line.label}${short(best[1], percent)}`);
      }
      for (const [name, value] of [["x1", sx(mark)], ["x2", sx(mark)], ["visibility", "visible"]]) {
        cursor.setAttribute(name, value);
      }
      output.textContent = `at ${short(mark)}: ${parts.join(" · ")}`;
    });
    root.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      output.textContent = "";
    });
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "SVG",
      title: "save this figure as SVG" });
    button.addEventListener("click", () => save(root, $("h3", figure).textContent));
    $("h3", figure).after(button);
  }

  // Saves a figure as a file of its own, with the styles of the page written into its elements.
  function save(root, title) {
    const copy = root.cloneNode(true), parts = $$("*", root);
    $$("*", copy).forEach((node, i) => {
      const style = getComputedStyle(parts[i]);
      for (const name of ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font"]) {
        node.style.setProperty(name, style.getPropertyValue(name));
      }
    });
    $(".cursor", copy).remove();
    copy.setAttribute("xmlns", namespace);
    const [, , width, height] = root.getAttribute("viewBox").split(" ");
    for (const [name, value] of [["width", width], ["height", height]]) copy.setAttribute(name, value);
    Object.assign(document.createElement("a"), { download: `${title}.svg`,
      href: `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}` }).click();
  }

  const figures = $$("figure[data-metric]");
  const drawAll = () => figures.forEach(draw);
  $$("#axes input, #logsteps").forEach((input) => input.addEventListener("change", drawAll));
  let laidOut = document.body.clientWidth;
  drawAll();
  new ResizeObserver(() => {
    if (document.body.clientWidth === laidOut || matchMedia("print").matches) return;
    laidOut = document.body.clientWidth;
    drawAll();
  }).observe(document.body);

  // Attention: a text, one of its maps (queries [t], keys [s]), a layer, a head, a query.
  const texts = data.attention;
  if (texts.length) {
    const of = { text: $("#text"), layer: $("#layer"), head: $("#head"), kind: $("#kind") };
    let now = null, bytes = null, query = 0, crossing = false;

    const weight = (layer, head, t, s) => {
      const { heads, queries, keys } = now, at = (h) => ((layer * heads + h) * queries.length + t) * keys.length + s;
      if (head >= 0) return bytes[at(head)] / 255;
      let sum = 0;
      for (let h = 0; h < heads; h++) sum += bytes[at(h)];
      return sum / 255 / heads;
    };

    // The choice before stays where there is the same one; by default it is the last one, or `first`.
    const options = (select, names, first) => {
      const previous = select.value, before = select.options.length;
      select.textContent = "";
      if (first) select.append(new Option(first, -1));
      names.forEach((name, i) => select.append(new Option(name, i)));
      select.value = before && [...select.options].some((o) => o.value === previous) ? previous
        : first ? -1 : names.length - 1;
      select.parentElement.hidden = names.length < 2;
    };

    const numbered = (name, number) => Array.from({ length: number }, (_, i) => `${name} ${i + 1}`);

    // A line of tokens after the name of their text, where there are two.
    const line = (root, tokens, name, make) => {
      root.textContent = "";
      if (name) root.append(Object.assign(document.createElement("small"), { textContent: name }));
      tokens.forEach((word, i) => root.append(make(word, i)));
    };

    const chooseText = () => {
      const names = texts[of.text.value].maps.map((map) => map.name), fresh = !of.kind.options.length;
      options(of.kind, names);
      if (fresh) of.kind.value = 0;
      chooseMap();
    };

    const chooseMap = () => {
      now = texts[of.text.value].maps[of.kind.value];
      bytes = Uint8Array.from(atob(now.weights), (c) => c.charCodeAt(0));
      options(of.layer, numbered("layer", now.layers));
      options(of.head, numbered("head", now.heads), "mean of all");
      query = now.first;
      crossing = now.rows !== now.columns;
      line($("#tokens"), now.queries, crossing && now.rows, (word, i) => {
        const button = Object.assign(document.createElement("button"), { type: "button", textContent: word });
        button.addEventListener("click", () => { query = i; show(); });
        return button;
      });
      line($("#keys"), crossing ? now.keys : [], crossing && now.columns,
        (word) => Object.assign(document.createElement("span"), { textContent: word }));
      $("#axes-of-map").textContent = crossing
        ? `Rows: queries, the steps of the decoder, each with the token of the ${now.rows} that it predicts. ` +
          `Columns: keys, the tokens of the ${now.columns}.`
        : `Rows: queries. Columns: keys. Both are the tokens of the ${now.rows}.`;
      overview();
      show();
    };

    const show = () => {
      const layer = +of.layer.value, head = +of.head.value, { queries, keys } = now;
      [...$("#tokens").querySelectorAll("button")].forEach((button, i) => {
        button.setAttribute("aria-pressed", i === query);
      });
      [...$(crossing ? "#keys" : "#tokens").querySelectorAll("span, button")].forEach((token, s) => {
        // Shades go by the square root, so that a weight of 4% can still be seen.
        token.style.setProperty("--w", `${Math.round(85 * Math.sqrt(weight(layer, head, query, s)))}%`);
        token.title = `${Math.round(100 * weight(layer, head, query, s))}%`;
      });
      drawMap(layer, head);
      const name = queries[query].trim(), who = crossing ? `The step that predicts “${name}”` : `“${name}”`;
      $("#looks").textContent = `${who} attends, in layer ${layer + 1}, ` +
        (head < 0 ? "averaged over heads, to: " : `head ${head + 1}, to: `) +
        keys.map((word, s) => [weight(layer, head, query, s), word]).sort((a, b) => b[0] - a[0]).slice(0, 4)
          .map(([value, word]) => `${word} ${Math.round(100 * value)}%`).join(", ");
    };

    const drawMap = (layer, head) => {
      const { queries, keys } = now, n = Math.max(queries.length, keys.length), cell = n > 32 ? 9 : n > 20 ? 12 : 16;
      const margin = (words) => Math.min(90, 12 + 6.2 * Math.max(...words.map((word) => word.length))) + 14;
      const left = margin(queries), top = margin(keys), map = $("#map");
      const [wide, high] = [keys.length * cell, queries.length * cell];
      const short = (word) => (word.length > 13 ? `${word.slice(0, 12)}…` : word);
      map.textContent = "";
      const root = svg("svg", { viewBox: `0 0 ${left + wide + 2} ${top + high + 2}`, role: "img",
        style: `max-width:${(left + wide + 2) * 1.5}px`,
        "aria-label": `${now.name}: probabilities of layer ${layer + 1}` }, map);
      svg("rect", { class: "frame", x: left, y: top, width: wide, height: high }, root);
      svg("text", { class: "axis", x: left + wide / 2, y: 9, "text-anchor": "middle" }, root, `keys: ${now.columns}`);
      svg("text", { class: "axis", "text-anchor": "middle", transform: `translate(9 ${top + high / 2}) rotate(-90)` },
        root, `queries: ${now.rows}`);
      keys.forEach((word, s) => {
        const middle = left + (s + 0.5) * cell;
        svg("text", { transform: `translate(${middle + 3.5} ${top - 4}) rotate(-90)` }, root, short(word));
      });
      queries.forEach((word, t) => {
        const y = top + t * cell, mark = t === query ? "on" : "";
        svg("text", { x: left - 4, y: y + cell / 2 + 3.5, "text-anchor": "end", class: mark }, root, short(word));
        keys.forEach((key, s) => {
          const value = weight(layer, head, t, s);
          if (!value) return;
          const rect = svg("rect", { class: "cell", x: left + s * cell, y, width: cell, height: cell,
            "fill-opacity": Math.sqrt(value).toFixed(3) }, root);
          svg("title", {}, rect, `${word} → ${key}: ${Math.round(100 * value)}%`);
        });
      });
      svg("rect", { class: "row", x: left, y: top + query * cell, width: wide, height: cell }, root);
    };

    const overview = () => {
      const { layers, heads } = now, [n, m] = [now.queries.length, now.keys.length];
      const canvas = $("#heads"), gap = Math.max(1, Math.round(m / 10));
      $("#overview").hidden = layers * heads < 2;
      canvas.width = heads * (m + gap) - gap;
      canvas.height = layers * (n + gap) - gap;
      const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
      for (let i = 0; i < bytes.length; i++) { // [layers, heads, n, m]
        const s = i % m, t = Math.floor(i / m) % n, map = Math.floor(i / m / n);
        const row = Math.floor(map / heads) * (n + gap) + t, column = (map % heads) * (m + gap) + s;
        image.data.set([64, 124, 226, Math.round(Math.sqrt(255 * bytes[i]))], 4 * (row * canvas.width + column));
      }
      context.putImageData(image, 0, 0);
      canvas.setAttribute("aria-label", `all ${layers * heads} heads: a row for each layer, a column for each head`);
    };

    $("#heads").addEventListener("click", (event) => {
      const box = event.target.getBoundingClientRect();
      of.layer.value = Math.min(now.layers - 1, Math.floor(((event.clientY - box.top) / box.height) * now.layers));
      of.head.value = Math.min(now.heads - 1, Math.floor(((event.clientX - box.left) / box.width) * now.heads));
      show();
    });
    of.text.addEventListener("change", chooseText);
    of.kind.addEventListener("change", chooseMap);
    of.layer.addEventListener("change", show);
    of.head.addEventListener("change", show);
    chooseText();
  }

  // Printing opens what is folded.
  addEventListener("beforeprint", () => $$("details:not([open]):not(.long)").forEach((fold) => {
    fold.open = true;
    fold.dataset.folded = "";
  }));
  addEventListener("afterprint", () => $$("details[data-folded]").forEach((fold) => {
    fold.open = false;
    delete fold.dataset.folded;
  }));
})();
