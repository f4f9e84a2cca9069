package main

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// wholeOnlyAtItsEnd checks that an answer is complete with its last byte and not before.
func wholeOnlyAtItsEnd(t *testing.T, under system, answer string) {
	t.Helper()
	for length := 0; length <= len(answer); length++ {
		expected := 0
		if length == len(answer) {
			expected = length
		}
		if found, err := under.answer([]byte(answer[:length])); err != nil || found != expected {
			t.Fatalf("of %q: %d, %v", answer[:length], found, err)
		}
	}
}

func TestAnAnswerThatComesInPiecesIsOneAnswer(t *testing.T) {
	wholeOnlyAtItsEnd(t, &beanstalkd{}, "INSERTED 12\r\n")
	wholeOnlyAtItsEnd(t, &redis{}, string(heldByTransaction))
	wholeOnlyAtItsEnd(t, &redis{byScript: true}, ":1\r\n")
	wholeOnlyAtItsEnd(t, &whimbrel{}, "HTTP/1.1 202 Accepted\r\ncontent-length: 13\r\ndate: now\r\n\r\n{\"id\":\"abcd\"}")
}

func TestARefusalIsNoAnswer(t *testing.T) {
	refusals := map[system]string{
		&beanstalkd{}:          "OUT_OF_MEMORY\r\n",
		&redis{}:               "+OK\r\n-OOM command not allowed\r\n",
		&redis{byScript: true}: "-NOSCRIPT No matching script\r\n",
		&whimbrel{}:            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
	}
	for under, refusal := range refusals {
		if _, err := under.answer([]byte(refusal)); err == nil {
			t.Errorf("%q was accepted", refusal)
		}
	}
}

func TestTheNumberOfAMessageIsFoundWhereverItsPayloadIs(t *testing.T) {
	names := newNames()
	page := fmt.Sprintf(`{"messages":[{"payload":"%s"},`, names.message(7))
	page += fmt.Sprintf(`{"payload":"%s"}],"next_offset":2}`, names.message(1_234_567_890))
	var found []int
	names.in([]byte(page), func(number int) { found = append(found, number) })
	if len(found) != 2 || found[0] != 7 || found[1] != 1_234_567_890 {
		t.Errorf("found %v", found)
	}
}

func TestAMessageOfAnotherRoundIsNotCounted(t *testing.T) {
	earlier := append([]byte(nil), newNames().message(3)...)
	newNames().in(earlier, func(number int) { t.Errorf("%d was found", number) })
}

func TestEveryMessageIsAsLongAsTheOthers(t *testing.T) {
	names := newNames()
	if first := len(names.message(0)); first != payloadBytes || len(names.message(999_999)) != payloadBytes {
		t.Errorf("%d bytes", first)
	}
}

// One message that was due 2 s into a measured time of 4 s, and arrived this much later; 0 means that it never arrived.
func ledgerOfOne(knowsDue bool, late time.Duration) (*ledger, time.Time) {
	from := time.Unix(1_000_000, 0)
	due := from.Add(2 * time.Second)
	ledger := newLedger(8, from, from.Add(4*time.Second), knowsDue)
	ledger.asked(0, due)
	ledger.accepted(0, from.Add(time.Second))
	if late != 0 {
		ledger.came(0, due.Add(late))
	}
	return ledger, due
}

func TestLatenessIsFromTheDueTimeToTheFirstTimeThatItCame(t *testing.T) {
	ledger, due := ledgerOfOne(true, 3*time.Millisecond)
	ledger.came(0, due.Add(time.Second))
	found, err := ledger.figures(due.Add(time.Minute), 1)
	if err != nil || found.P99us != 3000 || found.Messages != 1 || ledger.awaits() {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestWhatNeverCameIsLateUntilTheDriverGaveUp(t *testing.T) {
	ledger, due := ledgerOfOne(true, 0)
	found, err := ledger.figures(due.Add(9*time.Second), 1)
	if err != nil || found.P50us != 9e6 || found.Missing != 1 || !ledger.awaits() {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestEarlyIsSaidOnlyWhereTheDueTimeIsKnown(t *testing.T) {
	for _, knowsDue := range []bool{true, false} {
		ledger, due := ledgerOfOne(knowsDue, -time.Millisecond)
		found, err := ledger.figures(due.Add(time.Minute), 1)
		if err != nil || (found.Early == 1) != knowsDue || found.MaxUs != 0 {
			t.Errorf("%v: %+v, %v", knowsDue, found, err)
		}
	}
}

func TestWhatWasDueOutsideTheMeasuredTimeIsNotCounted(t *testing.T) {
	ledger, due := ledgerOfOne(true, time.Millisecond)
	ledger.asked(1, due.Add(-3*time.Second))
	ledger.accepted(1, due)
	found, err := ledger.figures(due.Add(time.Minute), 2)
	if err != nil || found.Messages != 1 || ledger.awaits() {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestDelaysAreAllWholeSecondsFromOneToFive(t *testing.T) {
	seen := map[time.Duration]int{}
	for number := 0; number < 1000; number++ {
		seen[delayOf(number)]++
	}
	for seconds := 1; seconds <= 5; seconds++ {
		if seen[time.Duration(seconds)*time.Second] != 200 {
			t.Errorf("%v", seen)
		}
	}
}

func TestACommandOfRedisIsWrittenAsItsProtocolWants(t *testing.T) {
	if found := appendCommand(nil, "ZADD", "s", "12"); !bytes.Equal(found, []byte("*3\r\n$4\r\nZADD\r\n$1\r\ns\r\n$2\r\n12\r\n")) {
		t.Errorf("%q", found)
	}
}
