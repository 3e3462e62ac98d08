"""The plots of a run, made with plotly. The points of a trial have its number as their ``customdata``."""
