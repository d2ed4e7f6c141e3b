"""Who may connect, who they are and what they may do: listeners, TLS, SASL, rights, limits."""
