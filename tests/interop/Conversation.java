// What an application does with Apache Kafka's own client: plain and idempotent produce, transactions
// that commit and abort, a consume-transform-produce loop in a group, a read_committed reader, Admin.
// Prints one JSON line per step; the Python test compares them.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;

public class Conversation {
    static String bootstrap;

    static Properties properties(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (int i = 0; i < pairs.length; i += 2) properties.put(pairs[i], pairs[i + 1]);
        return properties;
    }

    static void say(String step, Collection<String> values) {
        StringBuilder line = new StringBuilder("{\"step\": \"" + step + "\", \"values\": [");
        String comma = "";
        for (String value : values) {
            line.append(comma).append('"').append(value).append('"');
            comma = ", ";
        }
        System.out.println(line.append("]}"));
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        String protocol = arguments[1];
        try (Admin admin = Admin.create(properties())) {
            admin.createTopics(List.of(new NewTopic("java-in", 2, (short) 1), new NewTopic("java-out", 1, (short) 1)))
                .all().get();
            Map<String, TopicDescription> described = admin.describeTopics(List.of("java-in")).allTopicNames().get();
            say("described", List.of(described.get("java-in").name() + ":" + described.get("java-in").partitions().size()));
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                try (Producer<String, String> producer = new KafkaProducer<>(properties("compression.type", codec))) {
                    for (int i = 0; i < 4; i++)
                        producer.send(new ProducerRecord<>("java-in", i % 2, "k" + i, codec + i)).get();
                }
            }
            transactions();
            copy(protocol);
            say("out", read("java-out", 1, 34));
            List<String> states = new ArrayList<>();
            for (TransactionListing listing : admin.listTransactions().all().get())
                states.add(listing.transactionalId() + ":" + listing.state());
            Collections.sort(states);
            say("transactions", states);
        }
    }

    static void transactions() {
        try (Producer<String, String> producer = new KafkaProducer<>(properties("transactional.id", "java-writer"))) {
            producer.initTransactions();
            for (int number = 0; number < 4; number++) {
                producer.beginTransaction();
                for (int i = 0; i < 7; i++)
                    producer.send(new ProducerRecord<>("java-in", i % 2, "k", "txn" + number + "-" + i));
                if (number % 2 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
    }

    static void copy(String protocol) {
        Properties reading = properties("group.id", "java-copiers", "isolation.level", "read_committed",
            "auto.offset.reset", "earliest", "enable.auto.commit", "false", "group.protocol", protocol);
        try (Producer<String, String> producer = new KafkaProducer<>(properties("transactional.id", "java-copier"));
             Consumer<String, String> consumer = new KafkaConsumer<>(reading)) {
            producer.initTransactions();
            consumer.subscribe(List.of("java-in"));
            int copied = 0;
            while (copied < 34) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>("java-out", 0, record.key(), record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                    copied++;
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            }
        }
    }

    static List<String> read(String topic, int partitions, int count) {
        List<String> values = new ArrayList<>();
        try (Consumer<String, String> consumer =
                 new KafkaConsumer<>(properties("isolation.level", "read_committed", "auto.offset.reset", "earliest"))) {
            List<TopicPartition> assigned = new ArrayList<>();
            for (int i = 0; i < partitions; i++) assigned.add(new TopicPartition(topic, i));
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            while (values.size() < count)
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200)))
                    values.add(record.value());
        }
        Collections.sort(values);
        return values;
    }
}
