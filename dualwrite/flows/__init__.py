"""Every conversation of the client with Kafka, without IO: generators that say what they wait for."""
