// Posts a body that is over the limit with net/http, and prints the status that it received.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	size, _ := strconv.Atoi(os.Args[2])
	url := "http://" + os.Args[1] + "/v1/topics/orders/messages"
	answer, err := http.Post(url, "text/plain", bytes.NewReader(make([]byte, size)))
	if err != nil {
		fmt.Println("net/http failed:", err)
		return
	}
	text, _ := io.ReadAll(answer.Body)
	fmt.Println("net/http", answer.StatusCode, strings.Contains(string(text), "payload_too_large"))
}
