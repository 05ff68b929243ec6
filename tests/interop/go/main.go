// Apache's Go client, driven from the interop tests: one subcommand a run, one tab-separated line a fact.
// Arguments: subcommand, NameServer address, topic, then the subcommand's own.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func check(err error) {
	if err != nil {
		fmt.Println("error\t" + err.Error())
		os.Exit(1)
	}
}

func message(topic string, number int) *primitive.Message {
	tag := "even"
	if number%2 == 1 {
		tag = "odd"
	}
	m := primitive.NewMessage(topic, []byte("body-"+strconv.Itoa(number)))
	m.WithTag(tag)
	m.WithKeys([]string{"key-" + strconv.Itoa(number)})
	m.WithProperty("number", strconv.Itoa(number))
	return m
}

func produce(namesrv, topic string, count int, asBatch bool) {
	p, err := rocketmq.NewProducer(producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		producer.WithGroupName("go_producer"), producer.WithRetry(2))
	check(err)
	check(p.Start())
	if asBatch {
		var messages []*primitive.Message
		for i := 0; i < count; i++ {
			messages = append(messages, message(topic, i))
		}
		result, err := p.SendSync(context.Background(), messages...)
		check(err)
		fmt.Printf("sent\t%d\t%s\n", result.Status, "batch")
	} else {
		for i := 0; i < count; i++ {
			result, err := p.SendSync(context.Background(), message(topic, i))
			check(err)
			fmt.Printf("sent\t%d\tbody-%d\t%d\t%d\n", result.Status, i, result.MessageQueue.QueueId, result.QueueOffset)
		}
	}
	check(p.Shutdown())
}

func consume(namesrv, topic, group, expression string, count int, orderly bool) {
	options := []consumer.Option{consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		consumer.WithGroupName(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumerOrder(orderly)}
	c, err := rocketmq.NewPushConsumer(options...)
	check(err)
	var got int32
	done := make(chan struct{}, 1)
	check(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: expression},
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				fmt.Printf("got\t%d\t%d\t%s\t%s\n", m.Queue.QueueId, m.QueueOffset, m.GetTags(), string(m.Body))
				if int(atomic.AddInt32(&got, 1)) == count {
					done <- struct{}{}
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(c.Start())
	select {
	case <-done:
	case <-time.After(60 * time.Second):
	}
	fmt.Printf("done\t%t\n", int(atomic.LoadInt32(&got)) >= count)
	check(c.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	a := os.Args
	count, _ := strconv.Atoi(a[4])
	switch a[1] {
	case "produce":
		produce(a[2], a[3], count, false)
	case "batch":
		produce(a[2], a[3], count, true)
	case "consume":
		consume(a[2], a[3], a[5], a[6], count, false)
	case "orderly":
		consume(a[2], a[3], a[5], a[6], count, true)
	}
}
