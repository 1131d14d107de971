// Writes when the parser of cron expressions that Velero uses lets them come, as JSON that the Rust tests
// of crates/engine compare themselves with. Run it as `go run . ../tests/golden/cron.json`.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

type row struct {
	Expression string   `json:"expression"`
	Local      string   `json:"local"`
	After      string   `json:"after"`
	Next       []string `json:"next"`
}

var fixed = []string{
	"* * * * *", "? ? ? ? ?", "0 0 * * *", "5 4 * * *", "*/15 * * * *", "0 */6 * * *", "5/15 * * * *",
	"30 4-8/2 * * *", "0 0 1,15 * *", "0 0 1,15 * 3", "0 0 */2 * 3", "0 0 */1 * 3", "0 0 * * */2",
	"0 0 13 * fri", "0 0 13 * FRI", "0 0 ? * Mon-Fri", "0 12 * jan,JUL *", "0 0 1 */3 *", "0 0 29 2 *",
	"0 0 31 * *", "0 0 30 2 1", "00 007 +1 * *", "0,,30 * * * *", ",5 0 * * *", "*-5 * * * *", "*-5-7/30 1 * * *",
	"59-59 23-23 * * *", "0 0 1 1 ?", "30 2 * * *", "30 1 * * *", "0 3 * * *", "0-10/3,50 2 * * *",
	"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly",
	"@every 1h30m", "@every 1s", "@every 90s", "@every 1ms", "@every 2.5s", "@every -1m", "@every 72h3m0.5s",
	"CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=America/New_York 30 1 * * *", "CRON_TZ=Asia/Kolkata @daily",
	"CRON_TZ=UTC   0 6 * * ?", "TZ= 0 6 * * *", "TZ=Local 0 6 * * *", "CRON_TZ=Asia/Tokyo @every 5m",
	"\t0  0 *\t* * ", "0 0 1-7 * *", "*/59 */23 * * *", "0/59 0/23 * * *", "*/100 * * * *",
}

var wrong = []string{
	"*", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *",
	"* * * 13 *", "* * * * 7", "* * * * sunday", "* * * january *", "mon * * * *", "* jan * * *", "-1 * * * *",
	"1- * * * *", "- * * * *", "5-1 * * * *", "* * * * fri-mon", "1-2-3 * * * *", "1/2/3 * * * *", "*/0 * * * *",
	"*/ * * * *", "*/-1 * * * *", "*/x * * * *", "1.5 * * * *", "L * * * *", "* * L * *", "* * 15W * *",
	"* * * * 5#3", "** * * * *", "*,x * * * *", "70/5 * * * *", "1-70 * * * *", "99999999999999999999 * * * *",
	"@", "@never", "@Daily", "@daily ", " @daily", "@every", "@every ", "@every 5", "@every x", "@every  5m",
	"@every 1d", "TZ=Mars/Olympus * * * * *", "CRON_TZ=europe/berlin * * * * *", "TZ=../x * * * * *",
	"TZ=/etc/localtime * * * * *", "TZ=UTC ", "CRON_TZ=UTC * * * *", "tz=UTC * * * * *",
	"TZ=UTC TZ=UTC * * * * *", "reboot", "@reboot", "1_0 * * * *", "0x5 * * * *", "% * * * *",
}

var impossible = []string{
	"0 0 30 2 *", "0 0 31 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 30,31 feb ?", ", * * * *",
	"* , * * *", "* * , * *", "* * * , *", "* * * * ,",
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: golden <output file>")
	}
	var rows []row
	for _, expression := range append(fixed, random(30)...) {
		for _, local := range []string{"UTC", "Europe/Berlin", "America/New_York"} {
			for _, after := range []string{
				"2026-01-01T00:00:00Z", "2026-03-28T11:22:33.456Z", "2026-10-24T23:59:59Z", "2028-02-28T12:00:00Z",
			} {
				rows = append(rows, times(expression, local, after))
			}
		}
	}
	for _, expression := range wrong {
		if _, err := cron.ParseStandard(expression); err == nil {
			log.Fatalf("%q is not refused", expression)
		}
	}
	for _, expression := range impossible {
		parsed, err := cron.ParseStandard(expression)
		check(err)
		if !parsed.Next(time.Unix(0, 0)).IsZero() {
			log.Fatalf("%q is possible", expression)
		}
	}
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	check(encoder.Encode(map[string]any{"read": rows, "refused": wrong, "never": impossible}))
	check(os.WriteFile(os.Args[1], buffer.Bytes(), 0o644))
}

// times asks for a few times in a row, as a server with this time zone would.
func times(expression, local, after string) row {
	zone, err := time.LoadLocation(local)
	check(err)
	// The parser compares with this variable to see whether a zone was named.
	time.Local = zone
	schedule, err := cron.ParseStandard(expression)
	check(err)
	moment, err := time.Parse(time.RFC3339, after)
	check(err)
	result := row{Expression: expression, Local: local, After: after}
	moment = moment.In(zone)
	for range 3 {
		moment = schedule.Next(moment)
		result.Next = append(result.Next, moment.UTC().Format(time.RFC3339))
	}
	return result
}

// random makes expressions that come true now and then.
func random(count int) []string {
	source := rand.New(rand.NewPCG(3, 4))
	field := func(min, max int) string {
		from := min + source.IntN(max-min+1)
		to := from + source.IntN(max-from+1)
		switch source.IntN(7) {
		case 0:
			return fmt.Sprint(from)
		case 1:
			return fmt.Sprintf("%d-%d", from, to)
		case 2:
			return fmt.Sprintf("%d-%d/%d", from, to, 1+source.IntN(5))
		case 3:
			return fmt.Sprintf("*/%d", 1+source.IntN(max))
		case 4:
			return fmt.Sprintf("%d,%d", from, to)
		default:
			return "*"
		}
	}
	var all []string
	for range count {
		all = append(all, strings.Join([]string{field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)}, " "))
	}
	return all
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
