"""A pytest plugin for mutants: that a test fails is enough, nobody reads the smallest example."""

from hypothesis import Phase, settings

settings.register_profile(
    "without shrinking", phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile("without shrinking")
