"""Made-up tables of a chain of stores, in the manner of Rossmann's, of which the truth is known.

Four tables: ``sales`` (a row for each store and day), ``stores``, ``states`` (where each store is) and ``weather`` (by
state and day). Log sales are a sum of effects that no single table has, and noise of a known size, :data:`NOISE`: no
model can be better than that on days that it has not seen, and one that has found all effects comes close to it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

NOISE = 0.1
"""Standard deviation of what nothing explains in log sales."""

FIRST_DAY = "2025-01-06"  # a Monday
STATES = ("BE", "BY", "HE", "NW", "SN")
WEEKDAYS = np.array([0.25, 0.1, 0.0, 0.0, 0.1, -0.15, -0.4])
"""Effects of the days of the week, from Monday."""

PROMOTION = {"basic": 0.2, "extra": 0.35, "extended": 0.5}
"""Effect of a promotion by the store's assortment."""


def make_tables(stores: int, days: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    """The four tables.

    Args:
        stores: Number of stores.
        days: Number of days, for each of which there is a row a store; some stores are closed.
        seed: Source of all randomness.
    """
    rng = np.random.default_rng(seed)
    dates = pd.date_range(FIRST_DAY, periods=days)
    shops = _stores(rng, stores, dates[0])
    states = pd.DataFrame({"store": shops["store"], "state": rng.choice(STATES, stores)})
    weather = _weather(rng, dates)
    return {
        "sales": _sales(rng, shops.merge(states, on="store"), weather, dates),
        "stores": shops.drop(columns="base"),
        "states": states,
        "weather": weather,
    }


def write_tables(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write each table as ``folder/NAME.parquet``, as another system may have left it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False, coerce_timestamps="us")


def _stores(rng: np.random.Generator, stores: int, first: pd.Timestamp) -> pd.DataFrame:
    """A row a store; ``base`` is the effect of the store itself, which no table shows."""
    far = rng.lognormal(7.5, 1.0, stores).round()
    opened = first + pd.to_timedelta(rng.integers(-400, 100, stores), unit="D")
    unknown = rng.random(stores) < 0.1
    return pd.DataFrame(
        {
            "store": np.arange(1, stores + 1),
            "assortment": rng.choice(list(PROMOTION), stores),
            "competition_distance": np.where(unknown, np.nan, far),  # in metres
            "competition_since": pd.Series(opened).mask(unknown).dt.date,
            "base": rng.normal(8.5, 0.4, stores),
        }
    )


def _weather(rng: np.random.Generator, dates: pd.DatetimeIndex) -> pd.DataFrame:
    """A row for each state and day."""
    season = -np.cos(2 * np.pi * dates.dayofyear / 365)
    parts = [
        pd.DataFrame(
            {
                "state": state,
                "date": dates.date,
                "temperature": (9 + 10 * season + rng.normal(0, 3, len(dates))).round(1),
                "rain": np.where(rng.random(len(dates)) < 0.4, rng.exponential(6, len(dates)), 0).round(1),
            }
        )
        for state in STATES
    ]
    return pd.concat(parts, ignore_index=True)


def _sales(
    rng: np.random.Generator, shops: pd.DataFrame, weather: pd.DataFrame, dates: pd.DatetimeIndex
) -> pd.DataFrame:
    """A row for each store and day: the truth."""
    rows = shops.merge(pd.DataFrame({"date": dates.date}), how="cross").merge(weather, on=["state", "date"])
    rows = rows.sort_values(["date", "store"], ignore_index=True)
    date = pd.to_datetime(rows["date"])
    weekday = date.dt.dayofweek.to_numpy()
    promo = ((date - dates[0]).dt.days // 7 % 2 == 0).to_numpy() & (weekday < 5)  # each second week, as theirs
    since = (date - pd.to_datetime(rows["competition_since"])).dt.days.to_numpy()
    rival = np.where(since > 0, -0.3 * np.exp(-rows["competition_distance"] / 2000), 0.0)  # a near one costs most
    log_sales = (
        rows["base"]
        + WEEKDAYS[weekday]
        + promo * rows["assortment"].map(PROMOTION)
        + rival
        - 0.01 * rows["rain"]
        + 0.1 * np.sin(2 * np.pi * date.dt.dayofyear / 365)
        + rng.normal(0, NOISE, len(rows))
    )
    is_open = (weekday < 6) | (rng.random(len(rows)) < 0.2)  # few open on Sundays
    return pd.DataFrame(
        {
            "store": rows["store"],
            "date": rows["date"],
            "open": is_open,
            "promo": promo,
            "sales": np.where(is_open, np.exp(log_sales).round(2), 0.0),
        }
    )
