"""What every room stands on: parameters, sharding, precision, random keys, errors."""
