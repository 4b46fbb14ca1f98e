"""The consumer: verbs for users (`consumer`), the fetch loops (`worker`), the storing of offsets (`storing`)."""
