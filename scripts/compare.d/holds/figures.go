package main

import (
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// figures are the output of one round.
type figures struct {
	// Holds accepted per second of the measured time.
	PerSecond float64 `json:"per_second"`
	// Latency of an answer (accept), or from the due time until a consumer has the message (late).
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	MaxUs float64 `json:"max_us"`
	// Number of messages of the quantiles.
	Messages int `json:"messages"`
	// Number of holds requested, also before and after the measured time.
	Asked int `json:"asked"`
	// Messages per second that a consumer received in the measured time (late).
	FiredPerSecond float64 `json:"fired_per_second"`
	// Accepted and due, but not received when the driver gave up (late).
	Missing int `json:"missing"`
	// Received before the due time, if the system was given a time (late).
	Early int `json:"early"`
}

// tally is used by the single thread of the load.
type tally struct{ took []time.Duration }

func (tally *tally) add(took time.Duration) { tally.took = append(tally.took, took) }

func (tally *tally) figures(measured time.Duration, asked int) (figures, error) {
	if len(tally.took) == 0 {
		return figures{}, errors.New("nothing was accepted in the measured time")
	}
	found := quantiles(tally.took)
	found.PerSecond, found.Asked = float64(len(tally.took))/measured.Seconds(), asked
	return found, nil
}

func quantiles(times []time.Duration) figures {
	sort.Slice(times, func(left, right int) bool { return times[left] < times[right] })
	at := func(share float64) float64 {
		return float64(times[int(share*float64(len(times)-1))]) / float64(time.Microsecond)
	}
	return figures{P50us: at(0.5), P99us: at(0.99), MaxUs: at(1), Messages: len(times)}
}

// ledger records when each message was due and when it arrived. The load writes due and accepted times, consumers write arrivals.
type ledger struct {
	from, until int64
	knowsDue    bool
	// In nanoseconds of the wall clock; 0 if not known yet.
	due, arrived []int64
	isAccepted   []bool
	// All relevant messages up to this number have arrived: the search starts here.
	settled       int
	acceptedMeant int
}

func newLedger(capacity int, from, until time.Time, knowsDue bool) *ledger {
	return &ledger{
		from: from.UnixNano(), until: until.UnixNano(), knowsDue: knowsDue,
		due: make([]int64, capacity), arrived: make([]int64, capacity), isAccepted: make([]bool, capacity),
	}
}

func (ledger *ledger) asked(number int, due time.Time) {
	if number < len(ledger.due) {
		atomic.StoreInt64(&ledger.due[number], due.UnixNano())
	}
}

func (ledger *ledger) accepted(number int, now time.Time) {
	if number < len(ledger.isAccepted) {
		ledger.isAccepted[number] = true
	}
	if at := now.UnixNano(); at >= ledger.from && at < ledger.until {
		ledger.acceptedMeant++
	}
}

// came keeps only the first time: a message may be seen twice.
func (ledger *ledger) came(number int, now time.Time) {
	if number < len(ledger.arrived) {
		atomic.CompareAndSwapInt64(&ledger.arrived[number], 0, now.UnixNano())
	}
}

func (ledger *ledger) isMeant(number int) bool {
	due := atomic.LoadInt64(&ledger.due[number])
	return ledger.isAccepted[number] && due >= ledger.from && due < ledger.until
}

// awaits reports whether a message due in the measured time has not arrived. Called by the thread of the load, after the load has ended.
func (ledger *ledger) awaits() bool {
	for ; ledger.settled < len(ledger.due); ledger.settled++ {
		if ledger.isMeant(ledger.settled) && atomic.LoadInt64(&ledger.arrived[ledger.settled]) == 0 {
			return true
		}
	}
	return false
}

// figures counts missing messages as late until `givenUp`.
func (ledger *ledger) figures(givenUp time.Time, asked int) (figures, error) {
	var lateness []time.Duration
	var missing, early, fired int
	for number := range ledger.due {
		came := atomic.LoadInt64(&ledger.arrived[number])
		if came >= ledger.from && came < ledger.until {
			fired++
		}
		if !ledger.isMeant(number) {
			continue
		}
		late := time.Duration(came - ledger.due[number])
		switch {
		case came == 0:
			missing++
			late = time.Duration(givenUp.UnixNano() - ledger.due[number])
		case late < 0:
			// Only if the due time is known: a delay was counted from the answer, somewhat later than the system counts.
			if ledger.knowsDue {
				early++
			}
			late = 0
		}
		lateness = append(lateness, late)
	}
	if len(lateness) == 0 {
		return figures{}, errors.New("nothing was due in the measured time")
	}
	measured := time.Duration(ledger.until - ledger.from).Seconds()
	found := quantiles(lateness)
	found.PerSecond, found.FiredPerSecond = float64(ledger.acceptedMeant)/measured, float64(fired)/measured
	found.Missing, found.Early, found.Asked = missing, early, asked
	return found, nil
}

// names gives each message of a round a number that can be found wherever its payload is.
type names struct {
	mark    string
	payload []byte
}

const numberDigits = 10

func newNames() *names {
	// Messages of an earlier round must not be mistaken for those of this one.
	mark := fmt.Sprintf("#%x-%x-", os.Getpid(), time.Now().UnixNano())
	payload := make([]byte, payloadBytes)
	for index := copy(payload, mark); index < len(payload); index++ {
		payload[index] = 'x'
	}
	return &names{mark, payload}
}

// message is valid until the next call; only one thread may call it.
func (names *names) message(number int) []byte {
	digits := names.payload[len(names.mark) : len(names.mark)+numberDigits]
	for index := len(digits) - 1; index >= 0; index-- {
		digits[index] = byte('0' + number%10)
		number /= 10
	}
	return names.payload
}

// in calls `found` with the number of each message in these bytes.
func (names *names) in(bytes []byte, found func(number int)) {
	for text := string(bytes); ; {
		at := strings.Index(text, names.mark)
		if at < 0 || len(text) < at+len(names.mark)+numberDigits {
			return
		}
		text = text[at+len(names.mark):]
		if number, err := strconv.Atoi(text[:numberDigits]); err == nil {
			found(number)
		}
	}
}
