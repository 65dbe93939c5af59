"""GPUs as data sheets describe them: the shipped table, and files of one's own."""
