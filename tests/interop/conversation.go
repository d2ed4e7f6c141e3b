// What an application does with franz-go: produce, transactions that commit and abort, a group that
// consumes, transforms and produces, a read_committed reader. One JSON line per step.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func say(step string, values []string) {
	sort.Strings(values)
	line, err := json.Marshal(map[string]any{"step": step, "values": values})
	must(err)
	fmt.Println(string(line))
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(os.Args[1]), kgo.AllowAutoTopicCreation())...)
	must(err)
	return made
}

func record(topic, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(value)}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	plain := client()
	for i := 0; i < 5; i++ {
		must(plain.ProduceSync(ctx, record("go-in", fmt.Sprintf("plain%d", i))).FirstErr())
	}
	plain.Close()

	writer := client(kgo.TransactionalID("go-writer"))
	for number := 0; number < 4; number++ {
		must(writer.BeginTransaction())
		for i := 0; i < 5; i++ {
			must(writer.ProduceSync(ctx, record("go-in", fmt.Sprintf("txn%d-%d", number, i))).FirstErr())
		}
		must(writer.EndTransaction(ctx, kgo.TransactionEndTry(number%2 == 0)))
	}
	writer.Close()

	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(os.Args[1]), kgo.AllowAutoTopicCreation(), kgo.TransactionalID("go-copier"),
		kgo.ConsumerGroup("go-copiers"), kgo.ConsumeTopics("go-in"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	must(err)
	for copied := 0; copied < 15; {
		fetches := session.PollFetches(ctx)
		must(fetches.Err())
		must(session.Begin())
		inThis := 0
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(ctx, record("go-out", string(r.Value)), nil)
			inThis++
		})
		committed, err := session.End(ctx, kgo.TryCommit)
		must(err)
		if committed {
			copied += inThis
		}
	}
	session.Close()

	reader := client(kgo.ConsumeTopics("go-out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	values := []string{}
	for len(values) < 15 {
		fetches := reader.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	reader.Close()
	say("out", values)
}
