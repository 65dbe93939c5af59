"""What every room needs: errors, units, files and records of files, options, tables of results, workers."""
