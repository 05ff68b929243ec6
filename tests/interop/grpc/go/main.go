// Apache's Go client of RocketMQ 5 (rocketmq-clients/golang/v5): what client.py does and prints, with its API.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const deadline = 120 * time.Second

var (
	endpoint, suffix string
	said             sync.Mutex
)

func say(words ...string) {
	said.Lock()
	defer said.Unlock()
	fmt.Println(strings.Join(words, "\t"))
}

func check(err error) {
	if err != nil {
		fmt.Println("error\t" + err.Error())
		os.Exit(1)
	}
}

// On a machine that is busy a proxy that has just started takes longer than the client's three seconds.
func patient(config *rmq.Config, options ...rmq.ClientOption) (rmq.Client, error) {
	return rmq.NewClient(config, append(options, rmq.WithQueryRouteTimeout(deadline))...)
}

func topic(name string) string { return "Grpc" + name + suffix }

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func text(value *string) string {
	if value == nil {
		return "None"
	}
	return *value
}

func push(name, group string, wanted int, topics ...string) (rmq.PushConsumer, chan struct{}) {
	done := make(chan struct{})
	var lock sync.Mutex
	expressions := map[string]*rmq.FilterExpression{}
	for _, one := range topics {
		expressions[one] = rmq.SUB_ALL
	}
	listener := &rmq.FuncMessageListener{Consume: func(m *rmq.MessageView) rmq.ConsumerResult {
		body := string(m.GetBody())
		say(name, m.GetTopic(), body, text(m.GetTag()), text(m.GetMessageGroup()), strconv.Itoa(int(m.GetDeliveryAttempt())))
		lock.Lock()
		defer lock.Unlock()
		if wanted--; wanted == 0 {
			close(done)
		}
		if body == "fails" && m.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}}
	consumer, err := rmq.NewPushConsumer(config(group+suffix), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(expressions), rmq.WithPushMessageListener(listener))
	check(err)
	check(consumer.Start())
	return consumer, done
}

func wait(done chan struct{}) {
	select {
	case <-done:
	case <-time.After(deadline):
	}
}

func flow() {
	plain, ordered, later := topic("Plain"), topic("Ordered"), topic("Later")
	producer, err := rmq.NewProducer(config(""), rmq.WithClientFunc(patient), rmq.WithTopics(plain, ordered, later))
	check(err)
	check(producer.Start())
	all, pushed := push("push", "GrpcPush", 20+2+10+1, plain, ordered, later)
	orderly, inOrder := push("in-order", "GrpcInOrder", 10, ordered)
	simple, err := rmq.NewSimpleConsumer(config("GrpcSimple"+suffix), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{plain: rmq.NewFilterExpression("odd")}))
	check(err)
	check(simple.Start())
	send := func(message *rmq.Message) {
		_, err := producer.Send(context.Background(), message)
		check(err)
	}
	for number := 0; number < 20; number++ {
		message := &rmq.Message{Topic: plain, Body: []byte("plain-" + strconv.Itoa(number))}
		message.SetTag([]string{"even", "odd"}[number%2])
		message.SetKeys("key-" + strconv.Itoa(number))
		send(message)
	}
	send(&rmq.Message{Topic: plain, Body: []byte("fails")})
	for number := 0; number < 10; number++ {
		message := &rmq.Message{Topic: ordered, Body: []byte("ordered-" + strconv.Itoa(number))}
		message.SetMessageGroup("one")
		send(message)
	}
	due := time.Now().Unix() + 4
	message := &rmq.Message{Topic: later, Body: []byte("later-" + strconv.FormatInt(due, 10))}
	message.SetDelayTimestamp(time.Unix(due, 0))
	send(message)
	taken := map[string]bool{}
	for end := time.Now().Add(deadline); len(taken) < 10 && time.Now().Before(end); {
		received, _ := simple.Receive(context.Background(), 16, 20*time.Second) // an error says that there is none
		for _, m := range received {
			say("simple", m.GetTopic(), string(m.GetBody()), text(m.GetTag()), strconv.Itoa(int(m.GetDeliveryAttempt())))
			check(simple.Ack(context.Background(), m))
			taken[string(m.GetBody())] = true
		}
	}
	wait(pushed)
	wait(inOrder)
	check(all.GracefulStop())
	check(orderly.GracefulStop())
	check(simple.GracefulStop())
	check(producer.GracefulStop())
}

func decide() {
	asked := make(chan struct{})
	var once sync.Once
	checker := &rmq.TransactionChecker{Check: func(m *rmq.MessageView) rmq.TransactionResolution {
		body := string(m.GetBody())
		say("checked", body)
		if body == "orphan" {
			once.Do(func() { close(asked) })
		}
		if body == "undone" {
			return rmq.ROLLBACK
		}
		return rmq.COMMIT
	}}
	producer, err := rmq.NewProducer(config(""), rmq.WithClientFunc(patient), rmq.WithTransactionChecker(checker), rmq.WithTopics(topic("Decided")))
	check(err)
	check(producer.Start())
	for _, body := range []string{"committed", "undone", "orphan"} {
		message := &rmq.Message{Topic: topic("Decided"), Body: []byte(body)}
		message.SetKeys(body)
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(context.Background(), message, transaction)
		check(err)
		say("half", body, receipts[0].MessageID)
		if body == "committed" {
			check(transaction.Commit())
		} else if body == "undone" {
			check(transaction.RollBack())
		}
	}
	wait(asked)
	select {
	case <-asked:
		say("asked", "True")
	default:
		say("asked", "False")
	}
	time.Sleep(time.Second) // its answer leaves in another goroutine
	check(producer.GracefulStop())
}

func main() {
	rmq.EnableSsl = false
	endpoint, suffix = os.Args[2], os.Args[3]
	if os.Args[1] == "flow" {
		flow()
	} else {
		decide()
	}
}
