"""What commands of several rooms use; no command lives here. Read `options` and `output` first."""
