"""Network ports through sysfs and ethtool.

Read `collectors.nic.collector` first.
"""
