"""Contenders that take turns, and the table of what came of it.

A figure is a ratio of two contenders that took turns in one run: per round the best of a few turns of each, then the median over
the rounds. It passes when three of four rounds do, so the other quartile shown is the one on the target's side.
"""

import statistics
import sys

TURNS = 3

# (row, start of the workload, what against) → bound: at least for "×" and "of", at most for "÷".
TARGETS = [
    ("hash_trtllm", "", "× peer", 3.3),
    ("hash_trtllm", "", "÷ latency floor", 1.6),
    ("hash_trtllm_many", "", "× peer", 10),
    ("hash_kvb1", "", "× peer", 10),
    ("keys", "", "× peer", 35),
    ("keys", "", "÷ memcpy", 1.1),
    ("lookup_embedded", "", "÷ bare hashbrown", 1.3),
    ("pool_put", "raw pages of 4 KiB", "of a bare copy", 0.67),
    ("pool_put", "raw pages of 64 KiB", "of a bare copy", 0.92),
    ("pool_put", "raw pages of 1 MiB", "of a bare copy", 0.96),
    ("pool_get", "raw pages of 4 KiB", "of a bare copy", 0.67),
    ("pool_get", "raw pages of 64 KiB", "of a bare copy", 0.92),
    ("pool_get", "raw pages of 1 MiB", "of a bare copy", 0.96),
    ("sealed", "", "÷ without verification", 1.15),
    ("resolve", "", "× peer", 40),
    ("build", "1024", "× peer", 40),
    ("build", "4096", "÷ 128 requests", 1.5),
    ("abi", "", "× per-key calls", 5),
    ("get_finished", "", "÷ 10 parked requests", 1.5),
    ("async_overlap", "", "÷ synchronous", 0.02),
    ("mooncake_get", "", "of bare calls", 0.95),
    ("mooncake_put", "", "of bare calls", 0.95),
    *(
        (row, f"{pages} pages of {size}", "× Mooncake's client", bound)
        for row in ("wire_get", "wire_put")
        for pages, size, bound in (
            (64, "4 KiB", 1.5), (64, "16 KiB", 1.5), (64, "64 KiB", 1.5), (32, "1 MiB", 1),
        )
    ),
]


class Suite:
    def __init__(self, rounds):
        self.rounds = rounds
        self.rows = []

    def race(self, row, workload, against, ours, contender):
        """Lets two functions take turns; each answers with the seconds per unit of its turn."""
        ours(), contender()
        samples = {"ours": [], "contender": []}
        for _ in range(self.rounds):
            best = [float("inf"), float("inf")]
            for turn in range(TURNS):
                for side in (turn % 2, 1 - turn % 2):
                    best[side] = min(best[side], (ours, contender)[side]())
            samples["ours"].append(best[0] * 1e9)
            samples["contender"].append(best[1] * 1e9)
        self.add({"row": row, "workload": workload, "against": against, **samples})

    def add(self, row):
        pairs = zip(row["ours"], row["contender"])
        ceiling = row["against"].startswith("÷")
        ratios = sorted(a / b if ceiling else b / a for a, b in pairs)
        quarter = len(ratios) // 4
        target = next(
            (
                bound
                for name, start, against, bound in TARGETS
                if (name, against) == (row["row"], row["against"])
                and row["workload"].startswith(start)
            ),
            None,
        )
        # Three of four rounds are at least this good.
        quartile = ratios[-1 - quarter] if ceiling else ratios[quarter]
        if target is None:
            verdict = ""
        else:
            verdict = "ok" if (quartile <= target if ceiling else quartile >= target) else "short"
        row |= {
            "ratio": statistics.median(ratios),
            "quartile": quartile,
            "ceiling": ceiling,
            "target": target,
            "verdict": verdict,
        }
        self.rows.append(row)
        print(f"  {row['row']}: {row['workload']}", file=sys.stderr)

    def table(self):
        head = ("name", "workload", "ours", "contender", "against", "ratio", "quartile", "target", "")
        lines = [head]
        for row in self.rows:
            bound = "≤" if row["ceiling"] else "≥"
            lines.append(
                (
                    row["row"],
                    row["workload"],
                    f"{statistics.median(row['ours']):.1f} ns",
                    f"{statistics.median(row['contender']):.1f} ns",
                    row["against"],
                    f"{row['ratio']:.2f}",
                    f"{row['quartile']:.2f}",
                    "" if row["target"] is None else f"{bound} {row['target']}",
                    row["verdict"],
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
