"""DRA driver of the agent: serves ResourceClaims in place of extended resources."""
