"""Parameters, sharding, random keys, files, remote stores and errors, which all other packages use."""
