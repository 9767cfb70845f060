# Compiled without declarations.
