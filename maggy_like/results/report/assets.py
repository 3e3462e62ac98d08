"""The page's style sheet and its script."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #5f6b7a; --paper: #ffffff; --card: #f5f7f9; --line: #dde2e8;
  --link: #1f6fb2; --mark: #2a9d6f; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa5b1; --paper: #16191d;
  --card: #1f2429; --line: #343b43; --link: #6db3f2; --mark: #4cc38a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem; max-width: 1240px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 0.3rem; font-size: 1.2rem; border-top: 1px solid var(--line); padding-top: 1.2rem; }
p { margin: 0.3rem 0; } .note, .soft { color: var(--soft); } a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; margin-top: 1rem; font-size: 0.9rem; }
nav a { text-decoration: none; } nav a:hover { text-decoration: underline; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 0.7rem; margin: 1rem 0 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 0.6rem 0.8rem; }
.card b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.card.best b { color: var(--mark); } .card span { color: var(--soft); font-size: 0.85rem; }
.scroll { overflow-x: auto; } .figure { width: 100%; break-inside: avoid; } .figure.wide { min-width: 760px; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; } .number { text-align: right; }
.facts td { overflow-wrap: anywhere; }
th.number { text-align: right; }
code, pre { font: 0.85rem/1.45 ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; } pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 0.6rem 0.8rem; max-height: 26rem; }
details { margin: 0.4rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
.kind { color: #d9534f; font-weight: 600; }
"""

SCRIPT = """
(async () => {
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const { figures, templates } = JSON.parse(await unpack("pictures"));
  if (!figures) return;
  const library = document.createElement("script");
  library.textContent = await unpack("library");
  document.head.append(library);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = (holder, paper = {}) => {
    const { data, layout } = figures[holder.dataset.figure];
    const template = templates[dark.matches ? "dark" : "light"];
    const options = { responsive: true, displaylogo: false };
    Plotly.react(holder, data, { ...layout, template, ...paper }, options)
      .then(() => { holder.dataset.drawn = "yes"; });
  };
  const holders = [...document.querySelectorAll("[data-figure]")];
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) { near.unobserve(target); draw(target); }
    }
  }, { rootMargin: "400px" });
  holders.forEach((holder) => near.observe(holder));
  const redraw = () => holders.filter((holder) => holder.dataset.drawn).forEach((holder) => draw(holder));
  const paper = { template: templates.light, width: 700 };  // of a sheet of A4 within its margins
  addEventListener("beforeprint", () => holders.forEach((holder) => draw(holder, paper)));
  addEventListener("afterprint", redraw);
  dark.addEventListener("change", redraw);
})();
"""
