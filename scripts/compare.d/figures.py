"""What rounds measured, and what follows from it: medians, ratios, goals. Pure code: it runs nothing and prints nothing."""

from dataclasses import dataclass, field
from statistics import median
from typing import Callable, List, Optional, Tuple


# Where the device moved by more than this between the two rounds of a pair, their ratio tells as much of it as of them.
DEVICE_MOVED_MAX = 2.0


class Missing(Exception):
    """A peer or a round that cannot be had, with the reason for people."""


@dataclass(frozen=True)
class Figures:
    """One round: messages per second, and how long each took: to be acknowledged, or to come after it was due."""

    per_second: float
    p50_us: float
    p99_us: float


def rate(figures: Figures) -> float:
    return figures.per_second


def promptness(figures: Figures) -> float:
    """Twice as prompt is half as late, at p99."""
    return 1e6 / max(figures.p99_us, 1.0)


@dataclass(frozen=True)
class Contender:
    """One system under one load. `is_equal` says that it syncs before it acknowledges, as Whimbrel does.

    `merit` is what the load compares: more of it is better.
    """

    system: str
    durability: str
    connections: str
    measure: Callable[[float], Figures]
    is_equal: bool = True
    merit: Callable[[Figures], float] = rate


@dataclass
class Standing:
    """What one contender did: its rounds, and beside each the round of Whimbrel that came straight after."""

    contender: Contender
    rounds: List[Figures] = field(default_factory=list)
    whimbrel_after: List[Figures] = field(default_factory=list)
    # For each pair, how many times slower the device's median sync was before one of the two than before the other.
    device_moved: List[float] = field(default_factory=list)
    missing: Optional[str] = None

    def ratios(self) -> List[float]:
        """Whimbrel's merit over the peer's, for each pair of neighbours: what the device did meanwhile met both."""
        merit = self.contender.merit
        return [merit(ours) / merit(peer) for peer, ours in zip(self.rounds, self.whimbrel_after)]


@dataclass(frozen=True)
class Goal:
    """Whimbrel's merit shall be at least `at_least` times that of this system under this load."""

    load: str
    system: str
    at_least: float
    # What follows the name of the load where it is not a rate that is wanted.
    words: str = ""

    @property
    def wanted(self) -> str:
        return f"{self.load}: {self.words or f'at least {self.at_least:g}× {self.system}'}"

    def judge(self, standings: List[Standing]) -> List[Tuple[str, str, str, str]]:
        """For each way in which the system was measured: that way, the figure, how much the device moved between
        neighbours, and the verdict."""
        return [self.judge_one(each) for each in standings if self.concerns(each.contender)]

    def concerns(self, contender: Contender) -> bool:
        return contender.system == self.system and contender.is_equal

    def judge_one(self, standing: Standing) -> Tuple[str, str, str, str]:
        way, ratios = standing.contender.connections, standing.ratios()
        if not ratios:
            return way, "missing" if standing.missing else "", "", "not measured"
        moved = max(standing.device_moved, default=1.0)
        verdict = "met" if median(ratios) >= self.at_least else "missed"
        if moved > DEVICE_MOVED_MAX:
            verdict += ", on an unsteady device"
        return way, shown_ratio(ratios), f"{moved:.1f}×", verdict


def middle(rounds: List[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    return Figures(
        median(each.per_second for each in rounds),
        median(each.p50_us for each in rounds),
        median(each.p99_us for each in rounds),
    )


def requests_for(seconds: float, per_second: float, at_least: int) -> int:
    """How many requests a generator that counts instead of timing needs to be busy for about so long."""
    return max(at_least, int(seconds * per_second))


def shown_rate(per_second: float) -> str:
    return f"{per_second:,.0f}".replace(",", " ")


def shown_time(micros: float) -> str:
    return f"{micros:.0f} µs" if micros < 1000 else f"{micros / 1000:.2f} ms"


def shown_ratio(ratios: List[float]) -> str:
    """The median, and the span where there was more than one pair."""
    if not ratios:
        return ""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}×"
    return f"{median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f})"


def table(head: List[str], rows: List[List[str]]) -> str:
    """A Markdown table whose columns are aligned for those who read it in a terminal."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)
