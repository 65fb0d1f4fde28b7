"""Colours and layout of the page."""

from __future__ import annotations

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f6fc1", "#8c8c00")
"""Okabe and Ito (2008) and two more: told apart with any colour vision."""

# Grey text keeps a contrast of 4.5 to 1 on its ground; names stand in the colour of the text, beside a bar of colour.
STYLE = """
:root { color-scheme: light dark; --bg: #fafaf8; --fg: #1a1a1c; --dim: #70707a; --card: #fff; --line: #e2e2de;
  --hatch: #c9c9c4; --hover: #00000014; }
@media (prefers-color-scheme: dark) { :root { --bg: #131316; --fg: #ededf0; --dim: #92929c; --card: #1c1c20;
  --line: #34343b; --hatch: #4a4a52; --hover: #ffffff22; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 2rem 1.5rem 6rem; background: var(--bg); color: var(--fg);
  font: 15px/1.6 ui-sans-serif, system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 0; display: inline-block; }
h3 { font-size: .82rem; font-weight: 400; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h3 b { font-weight: 650; }
h3 span, .numbers, dt, .legend, figcaption, nav { color: var(--dim); font-variant-numeric: tabular-nums; }
.numbers { display: inline-block; margin: 0 0 0 .75rem; font-size: .85rem; }
dl { display: grid; gap: .15rem; margin: 0 0 1rem; }
dl div { display: flex; gap: .75rem; }
dt { min-width: 6rem; } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .35rem 1.25rem; padding: 0; margin: 0 0 1rem;
  font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.swatch { width: 1.1rem; height: .8rem; border-radius: 3px; background: var(--c, var(--dim)); }
nav { display: grid; gap: 3px; margin: 0 0 1.5rem; font-size: .7rem; line-height: 1; }
nav a { display: flex; align-items: center; gap: .5rem; color: inherit; text-decoration: none; border-radius: 3px; }
nav a:hover { background: var(--hover); }
nav a > span:first-child { width: 2rem; text-align: right; }
nav .strip { flex: 1; height: 10px; margin: 0; gap: 1px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem;
  margin: 0 0 1.25rem; }
.strip { display: flex; gap: 2px; height: 26px; margin: .7rem 0 1.1rem; }
.strip > * { min-width: 2px; border-radius: 3px; overflow: hidden; display: flex; }
.strip a:hover { outline: 2px solid var(--fg); outline-offset: 1px; }
.strip i { background: var(--c); min-width: 0; } .strip i.dim, .swatch.dim { opacity: .4; }
.swatch.picture, .strip i.picture { background: repeating-linear-gradient(90deg, var(--c, var(--dim)) 0 3px,
  color-mix(in srgb, var(--c, var(--dim)) 55%, transparent) 3px 6px); }
.padding { background: repeating-linear-gradient(45deg, var(--hatch) 0 2px, transparent 2px 6px);
  border: 1px solid var(--hatch); }
article { border-left: 4px solid var(--c); padding: .1rem 0 .1rem .9rem; margin: 0 0 1.1rem; scroll-margin: 1rem; }
section { scroll-margin: 1rem; }
article:target { outline: 2px solid var(--c); outline-offset: 6px; border-radius: 3px; }
.flow { overflow-wrap: anywhere; unicode-bidi: isolate; }
.flow span { white-space: pre-wrap; }
.flow i { font-style: normal; border-radius: 2px; }
.flow i:hover { background: var(--hover); box-shadow: 0 0 0 1px var(--dim); }
.flow .s { font: .78em ui-monospace, monospace; }
.masked { color: var(--dim); }
figure { display: flex; align-items: end; gap: .6rem; margin: .3rem 0; }
figure img { display: block; max-height: 150px; max-width: 80%; border-radius: 5px; border: 1px solid var(--line); }
figcaption { font-size: .72rem; line-height: 1.5; }
details summary { cursor: pointer; color: var(--dim); font-size: .85rem; }
.bad { border: 1px solid #d55e00; border-radius: 10px; padding: .6rem 1rem; margin: 0 0 1.25rem; overflow-x: auto; }
.bad table { border-collapse: collapse; font-size: .85rem; } .bad td, .bad th { text-align: left;
  padding: .2rem 1rem .2rem 0; vertical-align: top; }
"""
