// Fabric's own packages judge what the ordering service puts into config blocks.
//
// In, on stdin, case by case: a letter, the count of bytes (4, big endian) and the bytes.
//
//	m   the version of the rules (a byte), and an MSPConfig, as the value "MSP" of a group has it
//	r   the version, a role (a byte), an MSPConfig, its count of bytes before it, and a creator:
//	    whether the creator has the role
//	c   a Config: a channel's whole configuration
//	u   a Config, its count of bytes before it, and the ConfigEnvelope that shall follow it
//	p   the same, and an Envelope with a ConfigUpdate, which Fabric's orderer makes one of
//
// Out, a line for each case: "accepted", or "refused: " and the reason.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/golang/protobuf/proto"
	"github.com/hyperledger/fabric-protos-go/common"
	mspprotos "github.com/hyperledger/fabric-protos-go/msp"
	"github.com/hyperledger/fabric/bccsp"
	"github.com/hyperledger/fabric/bccsp/sw"
	"github.com/hyperledger/fabric/common/channelconfig"
	"github.com/hyperledger/fabric/common/flogging"
	"github.com/hyperledger/fabric/msp"
)

const channel = "chain-a"

func judge(provider bccsp.BCCSP, kind byte, raw []byte) (err error) {
	// Where Fabric's code ends with a panic, a peer does not take the block either.
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	switch kind {
	case 'm':
		_, err := members(provider, raw[0], raw[1:])
		return err
	case 'r':
		return judgeRole(provider, raw[0], raw[1], raw[2:])
	case 'c':
		config, err := bundle(provider, raw)
		if err != nil {
			return err
		}
		return supported(config)
	case 'u', 'p':
		return judgeUpdate(provider, kind, raw)
	}
	return fmt.Errorf("no case %q", kind)
}

func members(provider bccsp.BCCSP, version byte, raw []byte) (msp.MSPManager, error) {
	config := &mspprotos.MSPConfig{}
	if err := proto.Unmarshal(raw, config); err != nil {
		return nil, err
	}
	handler := channelconfig.NewMSPConfigHandler(msp.MSPVersion(version), provider)
	if _, err := handler.ProposeMSP(config); err != nil {
		return nil, err
	}
	return handler.CreateMSPManager()
}

func judgeRole(provider bccsp.BCCSP, version, role byte, raw []byte) error {
	count := binary.BigEndian.Uint32(raw)
	manager, err := members(provider, version, raw[4:4+count])
	if err != nil {
		return err
	}
	identity, err := manager.DeserializeIdentity(raw[4+count:])
	if err != nil {
		return err
	}
	wanted := &mspprotos.MSPRole{
		MspIdentifier: identity.GetMSPIdentifier(), Role: mspprotos.MSPRole_MSPRoleType(role),
	}
	principal, err := proto.Marshal(wanted)
	if err != nil {
		return err
	}
	return identity.SatisfiesPrincipal(&mspprotos.MSPPrincipal{Principal: principal})
}

func bundle(provider bccsp.BCCSP, raw []byte) (*channelconfig.Bundle, error) {
	config := &common.Config{}
	if err := proto.Unmarshal(raw, config); err != nil {
		return nil, err
	}
	return channelconfig.NewBundle(channel, config, provider)
}

// supported says what ends nodes and peers at a config: a capability that they lack.
func supported(next *channelconfig.Bundle) error {
	if err := next.ChannelConfig().Capabilities().Supported(); err != nil {
		return err
	}
	if orderer, ok := next.OrdererConfig(); ok {
		if err := orderer.Capabilities().Supported(); err != nil {
			return err
		}
	}
	if application, ok := next.ApplicationConfig(); ok {
		return application.Capabilities().Supported()
	}
	return nil
}

func judgeUpdate(provider bccsp.BCCSP, kind byte, raw []byte) error {
	count := binary.BigEndian.Uint32(raw)
	current, err := bundle(provider, raw[4:4+count])
	if err != nil {
		return fmt.Errorf("the current config: %w", err)
	}
	envelope := &common.ConfigEnvelope{}
	if kind == 'p' {
		update := &common.Envelope{}
		if err := proto.Unmarshal(raw[4+count:], update); err != nil {
			return err
		}
		envelope, err = current.ConfigtxValidator().ProposeConfigUpdate(update)
		if err != nil {
			return err
		}
	} else if err := proto.Unmarshal(raw[4+count:], envelope); err != nil {
		return err
	}
	if err := current.ConfigtxValidator().Validate(envelope); err != nil {
		return err
	}
	next, err := channelconfig.NewBundle(channel, envelope.Config, provider)
	if err != nil {
		return err
	}
	if err := supported(next); err != nil {
		return err
	}
	return current.ValidateNew(next)
}

func main() {
	flogging.ActivateSpec("fatal")
	provider, err := sw.NewDefaultSecurityLevelWithKeystore(sw.NewDummyKeyStore())
	if err != nil {
		panic(err)
	}
	in, out := bufio.NewReader(os.Stdin), bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		var head [5]byte
		if _, err := io.ReadFull(in, head[:]); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		raw := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(in, raw); err != nil {
			panic(err)
		}
		verdict := "accepted"
		if err := judge(provider, head[0], raw); err != nil {
			verdict = "refused: " + strings.Join(strings.Fields(err.Error()), " ")
		}
		fmt.Fprintln(out, verdict)
	}
}
