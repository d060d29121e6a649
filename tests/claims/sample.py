"""The results of a claim, as results.json holds them."""

from lmrep.claims import results

ROW = {"against": "", "claimed": "", "margin": 0.0, "published": None, "difference": None, "verdict": "",
       "seeds_needed": None}
RESULTS: results.Results = {
    "claim": "a_table1", "paper": "A & B, 2019, table 1", "statement": "50 % of {it} is a_part #1 <b>.",
    "published": "F1 on SQuAD 2.0, 100 % of it", "cost": "20 minutes on two cores", "scale": "miniature",
    "command": "lmrep reproduce a_table1 --workdir=claims/a_table1 --seeds=0-2",
    "measure": {"title": "loss, nats", "metric": "loss", "evaluate": {"split": "test"}, "format": ".2f"},
    "rows": {
        "base": ROW | {"title": "the base & co", "run": "base", "values": {"0": 2.0, "1": 2.1, "10": 2.2},
                       "published": 80.0},
        "wide": ROW | {"title": "a wide_network whose title is far too long for one line of a figure", "run": "wide",
                       "against": "base", "claimed": "below", "values": {"0": 1.0, "1": 1.1, "10": 1.3},
                       "difference": (-0.97, -1.2, -0.7), "verdict": "reproduced", "published": 80.5},
        "deep": ROW | {"title": "a deep one", "run": "deep", "against": "base", "claimed": "above", "margin": 0.1,
                       "values": {"0": 2.3}, "difference": (0.3, "nan", "nan"), "seeds_needed": 7,
                       "verdict": "not resolved at this scale"},
        "lost": ROW | {"title": "not run", "run": "lost", "against": "base", "claimed": "above", "values": {},
                       "verdict": "not resolved at this scale"}},
    "runs": {name: {"commands": [f"lmrep train --config=bert.py:x --workdir=claims/a_table1/seed=0/{name}"],
                    "seconds": {"0": 60.0}} for name in ("base", "wide", "deep", "lost")},
    "seconds": 240.0, "versions": {"lmrep": "0.1.0", "jax": "0.10.2"}, "processor": "A CPU (R)", "cores": 2,
    "date": "2026-11-28"}
