// SPDX-License-Identifier: GPL-2.0-only
/*
 * A restored TCP socket sends: what its process had written and the kernel not yet sent; and an answer to the FIN that
 * libsoccr makes anew where the other side had shut the connection. While that side is not yet there again, the kernel
 * would meet both with a reset. So nothing leaves any socket of the branch until all are there, but for what libsoccr
 * has marked as its own: a table of nf_tables, by netlink, since libnftables would be mapped in every task restored.
 */
#include <arpa/inet.h>
#include <sched.h>
#include <string.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>

#include "../soccr/soccr.h"

#include "bunshin-pool.h"
#include "log.h"
#include "namespaces.h"
#include "net.h"
#include "pstree.h"

#undef LOG_PREFIX
#define LOG_PREFIX "hold: "

#define TABLE "bunshin"
#define CHAIN "out"
#define ROOM 4096

static bool connections;
static struct nl_sock *branch_holder;

static struct nl_msg *begin(int type, int flags, int family, int resource)
{
	struct nfgenmsg head = { .nfgen_family = family, .version = NFNETLINK_V0, .res_id = htons(resource) };
	struct nl_msg *msg = nlmsg_alloc_simple(type, NLM_F_REQUEST | flags);

	if (msg && nlmsg_append(msg, &head, sizeof(head), NLMSG_ALIGNTO)) {
		nlmsg_free(msg);
		return NULL;
	}
	return msg;
}

static struct nl_msg *of_table(int type, int flags)
{
	return begin(NFNL_SUBSYS_NFTABLES << 8 | type, flags | NLM_F_ACK, NFPROTO_INET, 0);
}

static int put_u32(struct nl_msg *msg, int type, uint32_t value)
{
	return nla_put_u32(msg, type, htonl(value));
}

/* It goes with the socket, however that ends. */
static struct nl_msg *new_table(void)
{
	struct nl_msg *msg = of_table(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL);

	if (!msg)
		return NULL;
	nla_put_string(msg, NFTA_TABLE_NAME, TABLE);
	put_u32(msg, NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
	return msg;
}

static struct nl_msg *del_table(void)
{
	struct nl_msg *msg = of_table(NFT_MSG_DELTABLE, 0);

	if (msg)
		nla_put_string(msg, NFTA_TABLE_NAME, TABLE);
	return msg;
}

/* All packets that are sent are dropped. */
static struct nl_msg *new_chain(void)
{
	struct nl_msg *msg = of_table(NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL);
	struct nlattr *hook;

	if (!msg)
		return NULL;
	nla_put_string(msg, NFTA_CHAIN_TABLE, TABLE);
	nla_put_string(msg, NFTA_CHAIN_NAME, CHAIN);
	nla_put_string(msg, NFTA_CHAIN_TYPE, "filter");
	hook = nla_nest_start(msg, NFTA_CHAIN_HOOK);
	put_u32(msg, NFTA_HOOK_HOOKNUM, NF_INET_LOCAL_OUT);
	put_u32(msg, NFTA_HOOK_PRIORITY, 0);
	nla_nest_end(msg, hook);
	put_u32(msg, NFTA_CHAIN_POLICY, NF_DROP);
	return msg;
}

static struct nlattr *begin_expression(struct nl_msg *msg, const char *name, struct nlattr **ret_data)
{
	struct nlattr *element = nla_nest_start(msg, NFTA_LIST_ELEM);

	nla_put_string(msg, NFTA_EXPR_NAME, name);
	*ret_data = nla_nest_start(msg, NFTA_EXPR_DATA);
	return element;
}

static void end_expression(struct nl_msg *msg, struct nlattr *element, struct nlattr *data)
{
	nla_nest_end(msg, data);
	nla_nest_end(msg, element);
}

/* Those with libsoccr's mark pass. */
static struct nl_msg *new_rule(void)
{
	struct nl_msg *msg = of_table(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
	struct nlattr *list, *element, *data, *value, *verdict;

	if (!msg)
		return NULL;
	nla_put_string(msg, NFTA_RULE_TABLE, TABLE);
	nla_put_string(msg, NFTA_RULE_CHAIN, CHAIN);
	list = nla_nest_start(msg, NFTA_RULE_EXPRESSIONS);

	element = begin_expression(msg, "meta", &data);
	put_u32(msg, NFTA_META_DREG, NFT_REG_1);
	put_u32(msg, NFTA_META_KEY, NFT_META_MARK);
	end_expression(msg, element, data);

	element = begin_expression(msg, "cmp", &data);
	put_u32(msg, NFTA_CMP_SREG, NFT_REG_1);
	put_u32(msg, NFTA_CMP_OP, NFT_CMP_EQ);
	value = nla_nest_start(msg, NFTA_CMP_DATA);
	nla_put_u32(msg, NFTA_DATA_VALUE, SOCCR_MARK);
	nla_nest_end(msg, value);
	end_expression(msg, element, data);

	element = begin_expression(msg, "immediate", &data);
	put_u32(msg, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
	value = nla_nest_start(msg, NFTA_IMMEDIATE_DATA);
	verdict = nla_nest_start(msg, NFTA_DATA_VERDICT);
	put_u32(msg, NFTA_VERDICT_CODE, NF_ACCEPT);
	nla_nest_end(msg, verdict);
	nla_nest_end(msg, value);
	end_expression(msg, element, data);

	nla_nest_end(msg, list);
	return msg;
}

/* Sends messages as one transaction and waits for what comes of each; frees them. */
static int transact(struct nl_sock *sock, struct nl_msg **msgs, unsigned int n)
{
	char batch[ROOM];
	size_t size = 0;
	unsigned int i;
	int ret = 0;

	for (i = 0; i < n; i++) {
		struct nlmsghdr *head = msgs[i] ? nlmsg_hdr(msgs[i]) : NULL;

		if (!head || size + NLMSG_ALIGN(head->nlmsg_len) > sizeof(batch)) {
			ret = -NLE_NOMEM;
			continue;
		}
		nl_complete_msg(sock, msgs[i]);
		memcpy(batch + size, head, head->nlmsg_len);
		size += NLMSG_ALIGN(head->nlmsg_len);
	}
	if (!ret)
		ret = nl_sendto(sock, batch, size);
	for (i = 0; i < n; i++) {
		if (ret >= 0 && (nlmsg_hdr(msgs[i])->nlmsg_flags & NLM_F_ACK))
			ret = nl_wait_for_ack(sock);
		nlmsg_free(msgs[i]);
	}
	return ret < 0 ? ret : 0;
}

static int hold(struct nl_sock *sock)
{
	struct nl_msg *msgs[] = {
		begin(NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES),
		new_table(), new_chain(), new_rule(),
		begin(NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES),
	};

	return transact(sock, msgs, sizeof(msgs) / sizeof(*msgs));
}

static int let_go(struct nl_sock *sock)
{
	struct nl_msg *msgs[] = {
		begin(NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES),
		del_table(),
		begin(NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES),
	};

	return transact(sock, msgs, sizeof(msgs) / sizeof(*msgs));
}

/* In the network namespace of the tasks that are restored. */
static int connect_inside(struct nl_sock *sock)
{
	int old, ret;

	if (switch_ns(root_item->pid->real, &net_ns_desc, &old))
		return -NLE_FAILURE;
	ret = nl_connect(sock, NETLINK_NETFILTER);
	return restore_ns(old, &net_ns_desc) ? -NLE_FAILURE : ret;
}

struct nl_sock *bunshin_hold(void)
{
	struct nl_sock *holder;
	int ret = -NLE_NOMEM;

	/* The machine's own network is not held. */
	if (!(root_ns_mask & CLONE_NEWNET))
		return NULL;
	holder = nl_socket_alloc();
	if (holder)
		ret = connect_inside(holder) ?: hold(holder);
	if (!ret)
		return holder;
	pr_warn("packets cannot be held back: %s\n", nl_geterror(ret));
	nl_socket_free(holder);
	return NULL;
}

/* The socket stays open: to close it would take until the kernel has cleared away the table, tens of milliseconds. */
int bunshin_let_go(struct nl_sock *holder)
{
	int ret = holder ? let_go(holder) : 0;

	if (ret)
		pr_err("packets are held back for good: %s\n", nl_geterror(ret));
	return ret;
}

void bunshin_saw_connection(void)
{
	connections = true;
}

void bunshin_hold_packets(void)
{
	if (connections)
		branch_holder = bunshin_hold();
}

int bunshin_release_packets(void)
{
	return bunshin_let_go(branch_holder);
}
