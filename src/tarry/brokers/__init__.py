"""What holds the log, one folder or file each, behind `tarry.abc.Broker`."""
