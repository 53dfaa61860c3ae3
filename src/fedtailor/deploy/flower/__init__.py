"""All that imports or starts Flower."""
