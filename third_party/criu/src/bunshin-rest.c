// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frozen processes send nothing, but what they have sent goes on: data on the way comes in, is acknowledged, and lets
 * more of the queue follow. Two sides of a connection that are recorded at different moments of that do not fit
 * together: what one has sent, and been thanked for, the other has not got. CRIU locks the network; a lock loses
 * packets, and the source's connections would have to wait for them to be sent again. Loopback needs no more than a
 * moment: so they are waited for, and looked at again at the end. What then waits for the other side to have room is
 * held.
 */
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "../soccr/soccr.h"

#include "bunshin-pool.h"
#include "inet_diag.h"
#include "log.h"
#include "namespaces.h"
#include "net.h"
#include "pstree.h"
#include "xmalloc.h"

#undef LOG_PREFIX
#define LOG_PREFIX "rest: "

#define NAP_NS 1000000
#define CALM 2	     /* looks in a row that show no change */
#define PATIENCE 300 /* looks */

/* The beginning of the kernel's struct tcp_info; the C library's is shorter. */
struct info {
	uint8_t state[8];
	uint32_t rto, ato, snd_mss, rcv_mss, unacked, up_to_total_retrans[19];
	uint64_t up_to_bytes_received[4];
	uint32_t segs_out, segs_in, notsent;
};

struct stream {
	uint32_t cookie[2];
	uint32_t came, left; /* bytes not yet read; not yet acknowledged */
	bool goes_on;	     /* the next acknowledgement lets more of them go */
	bool waits;	     /* the other side has no room for more; a timer asks it now and then */
};

struct streams {
	struct stream *v;
	size_t n, room;
	bool failed;
};

static bool under_way;
static struct streams at_rest;
static struct nl_sock *holder;

void bunshin_saw_queue(const struct inet_diag_msg *msg, int type)
{
	under_way |= type == SOCK_STREAM && msg->idiag_state != TCP_LISTEN && msg->idiag_wqueue;
}

static void look_closer(struct nl_msg *msg, struct stream *stream)
{
	struct nlattr *attr = nlmsg_find_attr(nlmsg_hdr(msg), sizeof(struct inet_diag_msg), INET_DIAG_INFO);
	struct info info = {};

	if (attr)
		nla_memcpy(&info, attr, sizeof(info));
	stream->goes_on = info.notsent && info.unacked;
	stream->waits = info.notsent && !info.unacked;
}

static int add(struct nl_msg *msg, void *arg)
{
	const struct inet_diag_msg *m = nlmsg_data(nlmsg_hdr(msg));
	struct streams *to = arg;
	struct stream *stream;

	if (to->n == to->room) {
		size_t room = to->room ? 2 * to->room : 64;
		struct stream *v = xrealloc(to->v, room * sizeof(*v));

		if (!v) {
			to->failed = true;
			return NL_STOP;
		}
		to->v = v;
		to->room = room;
	}
	stream = memset(&to->v[to->n++], 0, sizeof(*to->v));
	memcpy(stream->cookie, m->id.idiag_cookie, sizeof(stream->cookie));
	stream->came = m->idiag_rqueue;
	stream->left = m->idiag_wqueue;
	look_closer(msg, stream);
	return NL_OK;
}

static int look_at(struct nl_sock *sock, int family, struct streams *to)
{
	struct inet_diag_req_v2 request = {
		.sdiag_family = family,
		.sdiag_protocol = IPPROTO_TCP,
		.idiag_ext = 1 << (INET_DIAG_INFO - 1),
		.idiag_states = ~(1u << TCP_LISTEN | 1u << TCP_TIME_WAIT | 1u << TCP_CLOSE),
	};

	nl_socket_modify_cb(sock, NL_CB_VALID, NL_CB_CUSTOM, add, to);
	if (nl_send_simple(sock, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &request, sizeof(request)) < 0 ||
	    nl_recvmsgs_default(sock) < 0 || to->failed) {
		pr_err("cannot read the queues of TCP connections\n");
		return -1;
	}
	return 0;
}

static int look(struct nl_sock *sock, struct streams *to)
{
	to->n = 0;
	return look_at(sock, AF_INET, to) || look_at(sock, AF_INET6, to) ? -1 : 0;
}

static struct nl_sock *open_inside(void)
{
	struct nl_sock *sock = nl_socket_alloc();
	int old;

	if (sock && !switch_ns(root_item->pid->real, &net_ns_desc, &old)) {
		int ret = nl_connect(sock, NETLINK_SOCK_DIAG);

		if (!restore_ns(old, &net_ns_desc) && !ret)
			return sock;
	}
	nl_socket_free(sock);
	pr_err("cannot ask for the queues of TCP connections\n");
	return NULL;
}

static bool calm_since(const struct streams *before, const struct streams *now)
{
	size_t i;

	for (i = 0; i < now->n; i++)
		if (now->v[i].goes_on)
			return false;
	return before->n == now->n && !memcmp(before->v, now->v, now->n * sizeof(*now->v));
}

static int wait_for_rest(struct nl_sock *sock)
{
	const struct timespec nap = { .tv_nsec = NAP_NS };
	struct streams now = {};
	int calm = 0, looks, ret = look(sock, &at_rest);

	for (looks = 0; !ret && calm < CALM && looks < PATIENCE; looks++) {
		nanosleep(&nap, NULL);
		ret = look(sock, &now);
		calm = calm_since(&at_rest, &now) ? calm + 1 : 0;
		if (!calm) {
			struct streams before = at_rest;

			at_rest = now;
			now = before;
		}
	}
	xfree(now.v);
	if (!ret && calm < CALM) {
		pr_err("TCP connections inside do not come to rest\n");
		return -1;
	}
	return ret;
}

/* An acknowledgement that comes late, between two of its questions, makes it fail. */
int bunshin_save_connection(struct libsoccr_sk *sk, struct libsoccr_sk_data *data, unsigned int size)
{
	int tries = 3, ret;

	do
		ret = libsoccr_save(sk, data, size);
	while (ret < 0 && --tries);
	return ret;
}

static bool nothing_came(const struct streams *now)
{
	size_t i, k;

	for (i = 0; i < now->n; i++)
		for (k = 0; k < at_rest.n; k++)
			if (!memcmp(now->v[i].cookie, at_rest.v[k].cookie, sizeof(now->v[i].cookie)) &&
			    now->v[i].came != at_rest.v[k].came)
				return false;
	return true;
}

int bunshin_tcp_rest(void)
{
	struct nl_sock *sock;
	size_t i;
	int ret;

	if (!bunshin_recording() || !under_way)
		return 0;
	sock = open_inside();
	if (!sock)
		return -1;
	ret = wait_for_rest(sock);
	nl_socket_free(sock);
	/* Nothing else is sent any more: no packet is lost that the source would have to send again. */
	for (i = 0; !ret && !holder && i < at_rest.n; i++)
		if (at_rest.v[i].waits)
			holder = bunshin_hold();
	return ret;
}

int bunshin_tcp_rested(void)
{
	struct streams now = {};
	struct nl_sock *sock;
	int ret;

	if (!at_rest.n)
		return 0;
	sock = open_inside();
	if (!sock)
		return -1;
	ret = look(sock, &now);
	if (!ret && !nothing_came(&now)) {
		pr_err("data came in on a TCP connection inside while it was recorded: try again\n");
		ret = -1;
	}
	xfree(now.v);
	nl_socket_free(sock);
	return bunshin_let_go(holder) ?: ret;
}
