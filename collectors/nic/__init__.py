"""Network ports through sysfs and ethtool.

Read `trainwarden.collectors.nic.collector` first.
"""
