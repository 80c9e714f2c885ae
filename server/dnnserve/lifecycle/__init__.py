"""Versions of models: when each is loaded, serves, drains and goes.

`versions` decides and is pure, `sightings` says what of a repository counts; `control` carries out what they decide, on a `Stage`.
"""
