"""Who may call, and over which connections: tokens, certificates, and files of both that are read again when they change."""
