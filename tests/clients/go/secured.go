// A server with TLS and rules. What clients log in with lies in the folder CREDENTIALS.
package main

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Connections that TLS refuses are tried again until a call's time is over.
const soon = 3 * time.Second

var (
	secured = map[string]func(*bed){
		"tls":               tls,
		"tls_reloaded":      tlsReloaded,
		"token_roles":       func(b *bed) { eachWhatItMay(b, byToken) },
		"token_refused":     tokenRefused,
		"token_renewed":     tokenRenewed,
		"certificate_roles": certificateRoles,
		"token_txn":         tokenTxn,
	}
	secrets = os.Getenv("CREDENTIALS")
)

func secret(name string) string {
	return secrets + "/" + name
}

func token(role string) string {
	data, err := os.ReadFile(secret(role + ".token"))
	must(err)
	return string(data)
}

func byToken(role string) pulsar.Authentication {
	return pulsar.NewAuthenticationToken(token(role))
}

func byCertificate(role string) pulsar.Authentication {
	return pulsar.NewAuthenticationTLS(secret(role+".pem"), secret(role+".key"))
}

// Act with another client: it logs in so, and trusts certificates of an authority.
func (b *bed) withClient(who pulsar.Authentication, authority string, wait time.Duration, act func(*bed)) {
	options := options(wait)
	options.Authentication = who
	options.EnableTransaction = b.withTxn
	options.TLSTrustCertsFilePath = secret(authority + ".pem")
	options.TLSValidateHostname = true
	client, err := pulsar.NewClient(options)
	must(err)
	defer client.Close()
	act(&bed{client: client, prefix: b.prefix})
}

func (b *bed) trySend(topic string) error {
	producer, err := b.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err == nil {
		producer.Close()
	}
	return err
}

func (b *bed) trySubscribe() error {
	consumer, err := b.tryConsumer(pulsar.ConsumerOptions{})
	if err == nil {
		consumer.Close()
	}
	return err
}

func tls(b *bed) {
	b.withClient(byToken("worker"), "ca", patience, func(known *bed) {
		known.send(b.topic(), 3)
		same(texts(some(known.subscribe(b.topic()), 3)), values(0, 3))
	})
	b.withClient(byToken("worker"), "other", soon, func(unknown *bed) {
		check(unknown.trySubscribe() != nil, "it trusted another authority")
	})
}

func tlsReloaded(b *bed) {
	b.withClient(byToken("worker"), "ca", patience, func(known *bed) {
		producer := known.plain(b.topic())
		sent(producer, "m0")
		pause("certificate")
		sent(producer, "m1")
		b.withClient(byToken("worker"), "other", patience, func(later *bed) {
			same(texts(some(later.subscribe(b.topic()), 2)), values(0, 2))
		})
	})
	b.withClient(byToken("worker"), "ca", soon, func(late *bed) {
		check(late.trySubscribe() != nil, "the old certificate is still there")
	})
}

// One may produce, one consume, one nothing, and none of them anything else.
func eachWhatItMay(b *bed, loggedIn func(string) pulsar.Authentication) {
	b.withClient(loggedIn("sender"), "ca", patience, func(sender *bed) {
		sender.send(b.topic(), 2)
		fails(sender.trySubscribe(), "NotAllowed")
		fails(sender.trySend("persistent://acme/shop/orders"), "NotAllowed")
	})
	b.withClient(loggedIn("reader"), "ca", patience, func(reader *bed) {
		same(texts(some(reader.subscribe(b.topic()), 2)), values(0, 2))
		fails(reader.trySend(b.topic()), "NotAllowed")
	})
	b.withClient(loggedIn("idle"), "ca", patience, func(idle *bed) {
		fails(idle.trySubscribe(), "NotAllowed")
		fails(idle.trySend(b.topic()), "NotAllowed")
	})
}

func certificateRoles(b *bed) {
	eachWhatItMay(b, byCertificate)
	b.withClient(byCertificate("stranger"), "ca", soon, func(stranger *bed) {
		check(stranger.trySubscribe() != nil, "it let a stranger in")
	})
}

func tokenRefused(b *bed) {
	for _, who := range []pulsar.Authentication{nil, byToken("expired"), byToken("forged")} {
		b.withClient(who, "ca", soon, func(refused *bed) {
			check(refused.trySubscribe() != nil, "it may subscribe")
			check(refused.trySend(b.topic()) != nil, "it may send")
		})
	}
}

func tokenRenewed(b *bed) {
	var isLate, wasAsked atomic.Bool
	supplied := pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
		if !isLate.Load() {
			pause("token") // a new one: it may be asked before it has sent
			return token("short"), nil
		}
		wasAsked.Store(true)
		return token("sender"), nil
	})
	b.withClient(supplied, "ca", patience, func(known *bed) {
		producer := known.plain(b.topic())
		sent(producer, "m0")
		isLate.Store(true)
		// in half the time: its connection ends after 30 s, and then any client asks anew
		for tries := 0; !wasAsked.Load(); tries++ {
			check(tries < 150, "it was not asked for another token")
			time.Sleep(100 * time.Millisecond)
		}
		sent(producer, "m1")
	})
}

func tokenTxn(b *bed) {
	b.withTxn = true
	b.withClient(byToken("worker"), "ca", patience, func(worker *bed) {
		commit(&bed{client: worker.client, prefix: b.prefix + "-commit"})
		abort(&bed{client: worker.client, prefix: b.prefix + "-abort"})
	})
}
