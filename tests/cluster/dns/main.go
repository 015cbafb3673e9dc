// The DNS server of the test cluster: A, AAAA and CNAME records of Services, headless Services, their pods, and
// ExternalName Services. It is built inside Kubernetes' source tree (tests/cluster/build), from the libraries vendored there.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
)

// The tests expect changes within seconds.
const ttlSeconds = 5

// A CNAME is followed to other names of the cluster, so often at most.
const maxAliases = 4

var services corelisters.ServiceLister
var slices discoverylisters.EndpointSliceLister

func lookup(name string) (ips []net.IP, cname string, found bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if !strings.HasSuffix(name, ".svc.cluster.local") {
		return nil, "", false
	}
	parts := strings.Split(strings.TrimSuffix(name, ".svc.cluster.local"), ".")
	host := ""
	if len(parts) == 3 {
		host, parts = parts[0], parts[1:]
	}
	if len(parts) != 2 {
		return nil, "", false
	}
	svc, err := services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, "", false
	}
	if svc.Spec.Type == v1.ServiceTypeExternalName {
		return nil, svc.Spec.ExternalName + ".", true
	}
	if svc.Spec.ClusterIP != v1.ClusterIPNone {
		for _, ip := range svc.Spec.ClusterIPs {
			ips = append(ips, net.ParseIP(ip))
		}
		return ips, "", host == ""
	}
	selector := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: parts[0]})
	list, _ := slices.EndpointSlices(parts[1]).List(selector)
	for _, s := range list {
		for _, e := range s.Endpoints {
			if (e.Conditions.Ready != nil && !*e.Conditions.Ready) && !svc.Spec.PublishNotReadyAddresses {
				continue
			}
			if host != "" && (e.Hostname == nil || *e.Hostname != host) {
				continue
			}
			for _, a := range e.Addresses {
				ips = append(ips, net.ParseIP(a))
			}
		}
	}
	return ips, "", host == "" || len(ips) > 0
}

func answer(q []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q)
	if err != nil {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	header := dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true}
	header.RecursionAvailable, header.RecursionDesired = true, h.RecursionDesired
	m := dnsmessage.Message{Header: header, Questions: []dnsmessage.Question{question}}
	name := question.Name
	for i := 0; i < maxAliases; i++ {
		ips, cname, found := lookup(name.String())
		if !found {
			if i == 0 {
				m.Header.RCode = dnsmessage.RCodeNameError
			}
			break
		}
		if cname != "" {
			target, err := dnsmessage.NewName(cname)
			if err != nil {
				break
			}
			header := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttlSeconds}
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: target}})
			name = target
			continue
		}
		for _, ip := range ips {
			header := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttlSeconds}
			var body dnsmessage.ResourceBody
			if v4 := ip.To4(); v4 != nil && question.Type == dnsmessage.TypeA {
				body = &dnsmessage.AResource{A: [4]byte(v4)}
			} else if v4 == nil && question.Type == dnsmessage.TypeAAAA {
				body = &dnsmessage.AAAAResource{AAAA: [16]byte(ip.To16())}
			} else {
				continue
			}
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: body})
		}
		break
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

func main() {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		panic(err)
	}
	if len(os.Args) > 1 {
		cfg.Host = os.Args[1]
	}
	f := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(cfg), time.Hour)
	services, slices = f.Core().V1().Services().Lister(), f.Discovery().V1().EndpointSlices().Lister()
	f.Start(context.Background().Done())
	f.WaitForCacheSync(context.Background().Done())
	fmt.Println("synced")
	ready := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	go http.ListenAndServe(":8181", http.HandlerFunc(ready))
	go func() {
		l, err := net.Listen("tcp", ":53")
		if err != nil {
			panic(err)
		}
		for {
			c, err := l.Accept()
			if err != nil {
				continue
			}
			go func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(5 * time.Second))
				var n [2]byte
				if _, err := c.Read(n[:]); err != nil {
					return
				}
				b := make([]byte, int(n[0])<<8|int(n[1]))
				if _, err := c.Read(b); err != nil {
					return
				}
				if out := answer(b); out != nil {
					c.Write(append([]byte{byte(len(out) >> 8), byte(len(out))}, out...))
				}
			}()
		}
	}()
	conn, err := net.ListenPacket("udp", ":53")
	if err != nil {
		panic(err)
	}
	for {
		b := make([]byte, 1500)
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			continue
		}
		go func() {
			if out := answer(b[:n]); out != nil {
				conn.WriteTo(out, from)
			}
		}()
	}
}
