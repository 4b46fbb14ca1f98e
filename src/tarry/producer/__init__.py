"""Producers: the direct one, whose sends are durable when they return (`producer`); partition choice (`sharding`)."""
