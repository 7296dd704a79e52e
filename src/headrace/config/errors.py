"""What a configuration that cannot work raises."""


class ConfigError(ValueError):
    """A configuration that cannot work; the message says why and what to change."""
