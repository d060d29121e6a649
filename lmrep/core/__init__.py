"""Parameters, sharding, precision, random keys, files and errors, which all other packages use."""
