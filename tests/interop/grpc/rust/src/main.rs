//! The Rust client of RocketMQ 5 (crate `rocketmq`): what client.py does and prints, with its API. It has no push consumer.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const DEADLINE: Duration = Duration::from_secs(120);

fn client(endpoint: &str) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(endpoint);
    option.set_enable_tls(false);
    option.set_timeout(Duration::from_secs(15));
    option
}

async fn flow(endpoint: &str, suffix: &str) {
    let (plain, ordered, later) =
        (format!("GrpcPlain{suffix}"), format!("GrpcOrdered{suffix}"), format!("GrpcLater{suffix}"));
    let mut option = ProducerOption::default();
    option.set_topics(vec![plain.clone(), ordered.clone(), later.clone()]);
    let mut producer = Producer::new(option, client(endpoint)).unwrap();
    producer.start().await.unwrap();
    for number in 0..20 {
        let tag = if number % 2 == 1 { "odd" } else { "even" };
        let message = MessageBuilder::builder()
            .set_topic(plain.clone())
            .set_body(format!("plain-{number}").into_bytes())
            .set_tag(tag)
            .set_keys(vec![format!("key-{number}")])
            .build()
            .unwrap();
        producer.send(message).await.unwrap();
    }
    for number in 0..10 {
        let message =
            MessageBuilder::fifo_message_builder(ordered.clone(), format!("ordered-{number}").into_bytes(), "one");
        producer.send(message.build().unwrap()).await.unwrap();
    }
    let due = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64 + 4;
    let message = MessageBuilder::delay_message_builder(later.clone(), format!("later-{due}").into_bytes(), due);
    producer.send(message.build().unwrap()).await.unwrap();
    take(endpoint, "simple", &format!("GrpcSimple{suffix}"), &plain, "odd", 10).await;
    take(endpoint, "in-order", &format!("GrpcInOrder{suffix}"), &ordered, "*", 10).await;
    take(endpoint, "later", &format!("GrpcPush{suffix}"), &later, "*", 1).await;
    producer.shutdown().await.unwrap();
}

/// Receives until so many have come; each is acknowledged.
async fn take(endpoint: &str, name: &str, group: &str, topic: &str, tag: &str, wanted: usize) {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic.to_string()]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, client(endpoint)).unwrap();
    consumer.start().await.unwrap();
    let (mut taken, end) = (HashSet::new(), Instant::now() + DEADLINE);
    while taken.len() < wanted && Instant::now() < end {
        let expression = FilterExpression::new(FilterType::Tag, tag);
        for message in consumer.receive(topic.to_string(), &expression).await.unwrap_or_default() {
            let body = String::from_utf8(message.body().to_vec()).unwrap();
            let group = message.message_group().unwrap_or("None");
            let tag = message.tag().unwrap_or("None");
            match name {
                "simple" => println!("simple\t{topic}\t{body}\t{tag}\t{}", message.delivery_attempt()),
                _ => println!("{name}\t{topic}\t{body}\t{tag}\t{group}\t{}", message.delivery_attempt()),
            }
            consumer.ack(&message).await.unwrap();
            taken.insert(body);
        }
    }
    consumer.shutdown().await.unwrap();
}

async fn decide(endpoint: &str, suffix: &str) {
    let topic = format!("GrpcDecided{suffix}");
    let asked = Arc::new(AtomicBool::new(false));
    let noted = asked.clone();
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic.clone()]);
    let checker = Box::new(move |_id, message: rocketmq::model::message::MessageView| {
        let body = String::from_utf8(message.body().to_vec()).unwrap();
        println!("checked\t{body}");
        if body == "orphan" {
            noted.store(true, Ordering::SeqCst);
        }
        if body == "undone" {
            TransactionResolution::ROLLBACK
        } else {
            TransactionResolution::COMMIT
        }
    });
    let mut producer = Producer::new_transaction_producer(option, client(endpoint), checker).unwrap();
    producer.start().await.unwrap();
    for body in ["committed", "undone", "orphan"] {
        let message = MessageBuilder::transaction_message_builder(topic.clone(), body.as_bytes().to_vec())
            .set_keys(vec![body])
            .build()
            .unwrap();
        let transaction = producer.send_transaction_message(message).await.unwrap();
        println!("half\t{body}\t{}", transaction.message_id());
        match body {
            "committed" => transaction.commit().await.unwrap(),
            "undone" => transaction.rollback().await.unwrap(),
            _ => {}
        }
    }
    let end = Instant::now() + DEADLINE;
    while !asked.load(Ordering::SeqCst) && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("asked\t{}", if asked.load(Ordering::SeqCst) { "True" } else { "False" });
    tokio::time::sleep(Duration::from_secs(1)).await; // its answer leaves in another task
    producer.shutdown().await.unwrap();
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words[1].as_str() {
        "flow" => flow(&words[2], &words[3]).await,
        _ => decide(&words[2], &words[3]).await,
    }
}
