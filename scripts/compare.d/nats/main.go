// Command nats publishes to a JetStream stream for some seconds and prints one line of JSON: the rate of acknowledged messages and the
// latency of their acknowledgements. It is only a load generator: it judges nothing and compares nothing.
//
// Three modes, by -mode:
//
//	single   each client sends one message and waits for its acknowledgement
//	async    each client keeps -batch messages unacknowledged; each has its own acknowledgement
//	atomic   each client sends a batch of -batch messages with one acknowledgement, all or none
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	streamName = "COMPARE"
	subject    = "compare"
	answerWait = 10 * time.Second
	// By default the server keeps 50 batches of one stream open at once.
	atomicClientsMax = 32
)

type settings struct {
	server  string
	mode    string
	clients int
	batch   int
	size    int
	warmup  time.Duration
	measure time.Duration
}

// The results of one client: the time of each counted acknowledgement, its latency, and its number of messages.
type tally struct {
	messages  int
	latencies []time.Duration
}

type figures struct {
	PerSecond float64 `json:"per_second"`
	P50us     float64 `json:"p50_us"`
	P99us     float64 `json:"p99_us"`
	Messages  int     `json:"messages"`
}

func main() {
	var chosen settings
	var warmup, measure float64
	flag.StringVar(&chosen.server, "server", "", "host:port")
	flag.StringVar(&chosen.mode, "mode", "single", "single, async or atomic")
	flag.IntVar(&chosen.clients, "clients", 1, "connections")
	flag.IntVar(&chosen.batch, "batch", 1, "messages of a batch, or unacknowledged at once")
	flag.IntVar(&chosen.size, "size", 256, "bytes of a payload")
	flag.Float64Var(&warmup, "warmup", 0.5, "seconds that are not measured")
	flag.Float64Var(&measure, "seconds", 5, "seconds that are measured")
	flag.Parse()
	chosen.warmup = time.Duration(warmup * float64(time.Second))
	chosen.measure = time.Duration(measure * float64(time.Second))
	found, err := run(chosen)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chosen settings) (figures, error) {
	publish, known := map[string]publisher{"single": single, "async": async, "atomic": atomic}[chosen.mode]
	if !known {
		return figures{}, fmt.Errorf("unknown mode %q", chosen.mode)
	}
	if chosen.mode == "atomic" && chosen.clients > atomicClientsMax {
		return figures{}, fmt.Errorf("the server permits too few open batches for %d clients", chosen.clients)
	}
	remove, err := makeStream(chosen.server)
	if err != nil {
		return figures{}, fmt.Errorf("the stream: %w", err)
	}
	defer remove()

	connections := make([]*nats.Conn, chosen.clients)
	for index := range connections {
		if connections[index], err = nats.Connect("nats://"+chosen.server, nats.NoReconnect()); err != nil {
			return figures{}, err
		}
		defer connections[index].Close()
	}
	from := time.Now().Add(chosen.warmup)
	until := from.Add(chosen.measure)
	tallies := make([]tally, chosen.clients)
	failures := make([]error, chosen.clients)
	var clients sync.WaitGroup
	for index, connection := range connections {
		clients.Go(func() { failures[index] = publish(connection, chosen, from, until, &tallies[index]) })
	}
	clients.Wait()
	if err := errors.Join(failures...); err != nil {
		return figures{}, err
	}
	return sum(tallies, chosen.measure)
}

func makeStream(server string) (remove func(), err error) {
	connection, err := nats.Connect("nats://" + server)
	if err != nil {
		return nil, err
	}
	streams, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := streams.DeleteStream(ctx, streamName); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	_, err = streams.CreateStream(ctx, jetstream.StreamConfig{
		Name:               streamName,
		Subjects:           []string{subject},
		Storage:            jetstream.FileStorage,
		Replicas:           1,
		AllowAtomicPublish: true,
	})
	remove = func() {
		_ = streams.DeleteStream(ctx, streamName)
		connection.Close()
	}
	return remove, err
}

func sum(tallies []tally, measured time.Duration) (figures, error) {
	var messages int
	var latencies []time.Duration
	for _, each := range tallies {
		messages += each.messages
		latencies = append(latencies, each.latencies...)
	}
	if len(latencies) == 0 {
		return figures{}, errors.New("nothing was acknowledged in the measured time")
	}
	slices.Sort(latencies)
	quantile := func(share float64) float64 {
		return float64(latencies[int(share*float64(len(latencies)-1))]) / float64(time.Microsecond)
	}
	return figures{float64(messages) / measured.Seconds(), quantile(0.5), quantile(0.99), messages}, nil
}

// Publishes until the end of its time, and counts the acknowledgements between `from` and `until`.
type publisher func(connection *nats.Conn, chosen settings, from, until time.Time, into *tally) error

func (into *tally) count(messages int, sent, from, until time.Time) {
	if now := time.Now(); !now.Before(from) && now.Before(until) {
		into.messages += messages
		into.latencies = append(into.latencies, now.Sub(sent))
	}
}

func single(connection *nats.Conn, chosen settings, from, until time.Time, into *tally) error {
	payload := payloadOf(chosen.size)
	for sent := time.Now(); sent.Before(until); sent = time.Now() {
		answer, err := connection.Request(subject, payload, answerWait)
		if err != nil {
			return err
		}
		if err := refusal(answer.Data); err != nil {
			return err
		}
		into.count(1, sent, from, until)
	}
	return nil
}

func async(connection *nats.Conn, chosen settings, from, until time.Time, into *tally) error {
	streams, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(chosen.batch))
	if err != nil {
		return err
	}
	type unacknowledged struct {
		future jetstream.PubAckFuture
		sent   time.Time
	}
	// One more than may be pending, so that only the server's acknowledgements slow the sender down.
	pending := make(chan unacknowledged, chosen.batch+1)
	outcome := make(chan error, 1)
	go func() {
		var failure error
		for each := range pending {
			select {
			case <-each.future.Ok():
				into.count(1, each.sent, from, until)
			case err := <-each.future.Err():
				failure = errors.Join(failure, err)
			}
		}
		outcome <- failure
	}()
	payload := payloadOf(chosen.size)
	for sent := time.Now(); sent.Before(until) && err == nil; sent = time.Now() {
		var future jetstream.PubAckFuture
		if future, err = streams.PublishAsync(subject, payload, jetstream.WithStallWait(answerWait)); err == nil {
			pending <- unacknowledged{future, sent}
		}
	}
	close(pending)
	return errors.Join(err, <-outcome)
}

func atomic(connection *nats.Conn, chosen settings, from, until time.Time, into *tally) error {
	payload := payloadOf(chosen.size)
	for sent := time.Now(); sent.Before(until); sent = time.Now() {
		batch := nats.NewInbox()[len(nats.InboxPrefix):]
		for number := 1; number < chosen.batch; number++ {
			if err := connection.PublishMsg(entry(batch, number, payload)); err != nil {
				return err
			}
		}
		last := entry(batch, chosen.batch, payload)
		last.Header.Set("Nats-Batch-Commit", "1")
		answer, err := connection.RequestMsg(last, answerWait)
		if err != nil {
			return err
		}
		if err := refusal(answer.Data); err != nil {
			return err
		}
		into.count(chosen.batch, sent, from, until)
	}
	return nil
}

func entry(batch string, number int, payload []byte) *nats.Msg {
	message := nats.NewMsg(subject)
	message.Header.Set("Nats-Batch-Id", batch)
	message.Header.Set("Nats-Batch-Sequence", strconv.Itoa(number))
	message.Data = payload
	return message
}

// The server answers a request also if it rejects the message.
func refusal(answer []byte) error {
	var said struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
		Sequence uint64 `json:"seq"`
	}
	if err := json.Unmarshal(answer, &said); err != nil {
		return err
	}
	if said.Error != nil {
		return fmt.Errorf("rejected: %s", said.Error.Description)
	}
	if said.Sequence == 0 {
		return fmt.Errorf("not an acknowledgement: %s", answer)
	}
	return nil
}

func payloadOf(size int) []byte { return bytes.Repeat([]byte("x"), size) }
