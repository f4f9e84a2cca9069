// Command holds sends holds to one system and prints one line of JSON. It is only a load generator: it judges nothing and compares
// nothing. The same loop drives every system, so that no system has a better client than another.
//
// It measures one of two things, by -measure:
//
//	accept   every connection requests a hold far in the future, waits for the answer and requests the next, at the highest rate
//	late     holds are requested at a steady rate and come due after 1 to 5 s; a consumer of the system in this same process
//	         records the lateness of each message
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
	// Whole seconds, because beanstalkd supports no others.
	delayMin, delayMax = 1 * time.Second, 5 * time.Second
	warmupShare        = 0.1
	// Time after the last due time in which missing messages may still arrive.
	giveUpAfter = 10 * time.Second
	lookEvery   = 5 * time.Millisecond
)

// system is one contender: how to request a hold, how to parse its answers, and how to consume fired messages.
type system interface {
	// prepare creates the state that a round needs.
	prepare() error
	// ask appends the request to hold this message. The delay and the due time are equivalent; each system uses the one it supports.
	ask(request []byte, message []byte, delay time.Duration, due time.Time) []byte
	// answer returns the length of the answer at the start of these bytes: 0 while it is not complete, an error for a rejection.
	answer(bytes []byte) (int, error)
	// delays reports that the system received a delay and not a time: it counts from when it read the request, a time only it has.
	delays() bool
	// consume starts to consume fired messages. `seen` accepts any bytes that contain whole messages. Several goroutines may call it, and
	// it may be called once more after the end.
	consume(seen func(bytes []byte)) (*consumers, error)
	// remove deletes the data of the round, as far as the system permits.
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
	return figures{}, fmt.Errorf("unknown measurement %q", chosen.measure)
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
	return nil, fmt.Errorf("unknown system %q", chosen.system)
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

// late fires and accepts at the same rate for the whole of the measured time, which starts after the longest delay.
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
			// Whole milliseconds: the finest resolution that all systems with due times support.
			due := now.Add(delay).Truncate(time.Millisecond)
			ledger.asked(number, due)
			return under.ask(request, names.message(number), delay, due)
		},
		answer: under.answer,
		answered: func(number int, _, now time.Time) {
			if under.delays() {
				// The latest possible due time, which favours the system.
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
