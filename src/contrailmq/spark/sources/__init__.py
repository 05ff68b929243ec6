"""The data sources `rocketmq` and `commitlog`."""
