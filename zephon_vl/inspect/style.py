"""Colours and layout of the page."""

from __future__ import annotations

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f6fc1", "#8c8c00")
"""Okabe and Ito (2008) and two more: told apart with any colour vision."""

STYLE = """
:root { color-scheme: light dark; --bg: #fbfbfa; --fg: #1c1c1e; --dim: #8a8a8f; --card: #fff; --line: #e2e2e0;
  --hatch: #d5d5d2; }
@media (prefers-color-scheme: dark) { :root { --bg: #141416; --fg: #ececee; --dim: #85858c; --card: #1d1d20;
  --line: #34343a; --hatch: #3a3a40; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 2rem 1.5rem 6rem; background: var(--bg); color: var(--fg);
  font: 15px/1.55 ui-sans-serif, system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .75rem; }
h2 { font-size: 1.05rem; margin: 0; display: inline-block; }
h3 { font-size: .8rem; font-weight: 400; margin: 0 0 .35rem; }
h3 b { color: var(--c); }
h3 span, .numbers, dt { color: var(--dim); font-variant-numeric: tabular-nums; }
.numbers { display: inline-block; margin: 0 0 0 .75rem; font-size: .85rem; }
dl { display: grid; gap: .15rem; margin: 0 0 1rem; }
dl div { display: flex; gap: .75rem; }
dt { min-width: 7rem; } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .35rem 1.25rem; padding: 0; margin: 0 0 1.5rem;
  font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.swatch { width: 1.1rem; height: .8rem; border-radius: 3px; background: var(--c, var(--dim)); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.25rem;
  margin: 0 0 1.25rem; }
.strip { display: flex; gap: 2px; height: 26px; margin: .7rem 0 1rem; }
.strip a, .strip .padding { min-width: 2px; border-radius: 3px; overflow: hidden; display: flex; }
.strip i { background: var(--c); min-width: 0; } .strip i.dim { opacity: .45; }
.picture, .strip i.picture { background: repeating-linear-gradient(90deg, var(--c, var(--dim)) 0 3px,
  color-mix(in srgb, var(--c, var(--dim)) 45%, transparent) 3px 6px); }
.padding { background: repeating-linear-gradient(45deg, var(--hatch) 0 3px, transparent 3px 8px);
  border: 1px solid var(--hatch); }
article { border-left: 4px solid var(--c); padding: .1rem 0 .1rem .9rem; margin: 0 0 1rem; }
article:target { outline: 2px solid var(--c); outline-offset: 6px; border-radius: 3px; }
.flow { overflow-wrap: anywhere; }
.flow span { white-space: pre-wrap; }
.flow img { display: block; max-height: 180px; max-width: 100%; border-radius: 6px; margin: .35rem 0; }
.masked { color: var(--dim); }
details summary { cursor: pointer; color: var(--dim); font-size: .85rem; }
.bad { border: 1px solid #d55e00; border-radius: 10px; padding: .6rem 1rem; margin: 0 0 1.25rem; }
.bad table { border-collapse: collapse; font-size: .85rem; } .bad td, .bad th { text-align: left;
  padding: .2rem 1rem .2rem 0; vertical-align: top; }
"""
