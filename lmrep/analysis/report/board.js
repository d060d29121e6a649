"use strict";
(() => {
  const { configs, same } = JSON.parse(document.getElementById("configs").textContent);
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const body = $("#runs tbody"), rows = $$("tr", body);
  const shared = Object.entries(same).map(([name, value]) => `${name}=${value}`).join("\n");
  const texts = new Map(rows.map((row) => [row, [row.textContent, shared,
    ...Object.entries(configs[row.dataset.run]).map(([name, value]) => `${name}=${value}`)].join("\n").toLowerCase()]));

  const search = () => {
    const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => texts.get(row).includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    $("#count").textContent = words.length ? `${shown} of ${rows.length}` : "";
    compare();
  };

  // Sorts by a column, numbers by value; cells without a value come last. A second click turns the order round.
  const sort = (head) => {
    const column = head.cellIndex, down = head.getAttribute("aria-sort") === "ascending";
    $$("#runs thead th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value;
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
      const order = head.classList.contains("n") ? x - y : x.localeCompare(y, "en", { numeric: true });
      return down ? -order : order;
    });
    body.append(...rows);
  };

  const cell = (kind, text) => Object.assign(document.createElement(kind), { textContent: text });
  const line = (...cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  };
  const quoted = (text) => (/^[\w./=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

  const compare = () => {
    const chosen = rows.filter((row) => !row.hidden && $("input", row).checked);
    const labels = chosen.map((row) => row.cells[1].dataset.value), of = chosen.map((row) => configs[row.dataset.run]);
    $("#comparison").hidden = chosen.length < 2;
    $("#command").textContent = `lmrep report ${labels.map(quoted).join(" ")}`;
    const names = [...new Set(of.flatMap((config) => Object.keys(config)))];
    const differing = names.filter((name) => new Set(of.map((config) => config[name])).size > 1);
    $("#differences").replaceChildren(
      line(cell("th", "field"), ...labels.map((label) => cell("th", label))),
      ...differing.map((name) => line(cell("th", name), ...of.map((config) => cell("td", config[name] ?? "")))));
  };

  $("#search").addEventListener("input", search);
  body.addEventListener("change", compare);
  $$("#runs thead th").forEach((head) => $("button", head)?.addEventListener("click", () => sort(head)));
  search();
})();
