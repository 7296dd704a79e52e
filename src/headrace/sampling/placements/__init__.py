"""Where the policy acts."""
