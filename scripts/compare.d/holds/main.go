// Command holds asks one system to hold messages until later and prints one line of JSON. It is a load generator and nothing else: it
// judges nothing and compares nothing. The same loop drives every system, so that none is measured by a better client than another.
//
// Two things are measured, by -measure:
//
//	accept   every connection asks for a hold far in the future, waits for the answer and asks for the next, as fast as it goes
//	late     holds are asked for at a steady rate and come due after 1 to 5 s; a consumer of the system in this same process
//	         notes how long after its due time it has each message
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

const (
	payloadBytes = 200
	// Ends long after the round.
	farDelay = 24 * time.Hour
	// Whole seconds, since beanstalkd knows no others.
	delayMin, delayMax = 1 * time.Second, 5 * time.Second
	warmupShare        = 0.1
	// How long after the last due time what is missing is still waited for.
	giveUpAfter = 10 * time.Second
	lookEvery   = 5 * time.Millisecond
)

// system is one contender: how it is asked to hold, how its answers are told apart, and how what has fired is consumed.
type system interface {
	// prepare makes what a round needs.
	prepare() error
	// ask appends the request to hold this message. The delay and the due time say the same; each system takes the one it knows.
	ask(request []byte, message []byte, delay time.Duration, due time.Time) []byte
	// answer tells how long the answer is that these bytes begin with: 0 while it is not complete, an error where it is a refusal.
	answer(bytes []byte) (int, error)
	// delays says that the system was told a delay and not a time: it counts from when it came to the request, which only it knows.
	delays() bool
	// consume starts to consume what fires. `seen` takes any bytes that hold whole messages. It may be called from several
	// goroutines, and once more after the end.
	consume(seen func(bytes []byte)) (*consumers, error)
	// remove takes away what the round left, as far as the system can.
	remove() error
}

type settings struct {
	system      string
	address     string
	way         string
	measure     string
	connections int
	perSecond   int
	duration    time.Duration
}

func main() {
	var chosen settings
	var seconds float64
	flag.StringVar(&chosen.system, "system", "", "whimbrel, beanstalkd or redis")
	flag.StringVar(&chosen.address, "address", "", "host:port")
	flag.StringVar(&chosen.way, "way", "", "a way of the system: beanstalkd: delete or keep; redis: script or transaction")
	flag.StringVar(&chosen.measure, "measure", "accept", "accept or late")
	flag.IntVar(&chosen.connections, "connections", 64, "connections that ask")
	flag.IntVar(&chosen.perSecond, "rate", 5000, "holds per second (late)")
	flag.Float64Var(&seconds, "seconds", 5, "seconds that are measured")
	flag.Parse()
	chosen.duration = time.Duration(seconds * float64(time.Second))
	found, err := run(chosen)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chosen settings) (found figures, err error) {
	under, err := systemOf(chosen)
	if err != nil {
		return figures{}, err
	}
	if err := under.prepare(); err != nil {
		return figures{}, fmt.Errorf("before the round: %w", err)
	}
	defer func() {
		if left := under.remove(); err == nil && left != nil {
			err = fmt.Errorf("after the round: %w", left)
		}
	}()
	switch chosen.measure {
	case "accept":
		return accept(under, chosen)
	case "late":
		return late(under, chosen)
	}
	return figures{}, fmt.Errorf("there is nothing to measure named %q", chosen.measure)
}

func systemOf(chosen settings) (system, error) {
	switch chosen.system {
	case "whimbrel":
		return &whimbrel{address: chosen.address}, nil
	case "beanstalkd":
		return &beanstalkd{address: chosen.address, deletes: chosen.way != "keep"}, nil
	case "redis":
		return &redis{address: chosen.address, byScript: chosen.way == "script"}, nil
	}
	return nil, fmt.Errorf("there is no system named %q", chosen.system)
}

func accept(under system, chosen settings) (figures, error) {
	warmup := time.Duration(float64(chosen.duration) * warmupShare)
	from := time.Now().Add(warmup)
	until := from.Add(chosen.duration)
	names := newNames()
	var answers tally
	load := load{
		address: chosen.address, connections: chosen.connections, until: until,
		render: func(request []byte, number int, now time.Time) []byte {
			return under.ask(request, names.message(number), farDelay, now.Add(farDelay))
		},
		answer: under.answer,
		answered: func(_ int, sent, now time.Time) {
			if !now.Before(from) && now.Before(until) {
				answers.add(now.Sub(sent))
			}
		},
	}
	if err := load.run(); err != nil {
		return figures{}, err
	}
	return answers.figures(chosen.duration, load.asked)
}

// late fires and accepts at the same rate for the whole of the measured time: it begins when the longest delay is over.
func late(under system, chosen settings) (figures, error) {
	from := time.Now().Add(delayMax)
	until := from.Add(chosen.duration)
	names := newNames()
	capacity := int((delayMax + chosen.duration + time.Second).Seconds() * float64(chosen.perSecond))
	ledger := newLedger(capacity, from, until, !under.delays())
	consuming, err := under.consume(func(bytes []byte) {
		now := time.Now()
		names.in(bytes, func(number int) { ledger.came(number, now) })
	})
	if err != nil {
		return figures{}, err
	}
	load := load{
		address: chosen.address, connections: chosen.connections, until: until, perSecond: chosen.perSecond,
		render: func(request []byte, number int, now time.Time) []byte {
			delay := delayOf(number)
			// Whole milliseconds: the finest that all who take a time understand.
			due := now.Add(delay).Truncate(time.Millisecond)
			ledger.asked(number, due)
			return under.ask(request, names.message(number), delay, due)
		},
		answer: under.answer,
		answered: func(number int, _, now time.Time) {
			if under.delays() {
				// The latest moment that can have been meant, which favours the system.
				ledger.asked(number, now.Add(delayOf(number)))
			}
			ledger.accepted(number, now)
		},
	}
	if err := load.run(); err != nil {
		consuming.end()
		return figures{}, err
	}
	giveUp := until.Add(giveUpAfter)
	for ledger.awaits() && time.Now().Before(giveUp) && consuming.failure() == nil {
		time.Sleep(lookEvery)
	}
	givenUp := time.Now()
	if err := consuming.end(); err != nil {
		return figures{}, fmt.Errorf("a consumer: %w", err)
	}
	return ledger.figures(givenUp, load.asked)
}

// delayOf spreads the delays over whole seconds.
func delayOf(number int) time.Duration {
	choices := int((delayMax-delayMin)/time.Second) + 1
	return delayMin + time.Duration(number%choices)*time.Second
}
